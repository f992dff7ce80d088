# noisette with torch for CUDA, or without it:
#
#     docker build --tag noisette:0.1.0 .
#     docker build --tag noisette:0.1.0-cpu --build-arg TORCH_INDEX=ADDRESS .
#
# ADDRESS is that of the package index which PyTorch's installation page names for machines without a GPU.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim
ARG TORCH_INDEX=""
ARG EXTRAS="cli,tables"

# The compiler is for steps that torch compiles.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /build/
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' /build/constraints.txt)"
COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src
RUN pip install --no-cache-dir "/build[${EXTRAS}]" && rm -r /build

RUN useradd --uid 1000 --create-home noisette && mkdir /job && chown noisette /job
USER noisette
WORKDIR /job
ENV NOISETTE_DATA=/data
ENTRYPOINT ["noisette"]
CMD ["--help"]
