# Anvil for CPUs (the default), or with CUDA, NCCL and MPI:
#
#   docker build -t anvil .
#   docker build -t anvil:cuda --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 --build-arg RUNTIME=nvidia/cuda:13.0.1-runtime-ubuntu24.04 --target cuda .
#   docker run --rm -it -v "$PWD:/data" anvil --help
#   docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/data" anvil:cuda --help
#
# --user "$(id -u):$(id -g)" makes the files in the mounted folder yours. --ipc=host, or --shm-size: ranks of one host communicate through shared memory.
ARG BASE=ubuntu:24.04
ARG RUNTIME=ubuntu:24.04

FROM ${BASE} AS build-cpu
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates g++ git libopenmpi-dev \
    libxxhash-dev make nlohmann-json3-dev openmpi-bin python3 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# .git is not copied: docker build --build-arg BUILD_ID="$(git describe --always)" passes the commit to the program.
ARG BUILD_ID=unknown
RUN echo "${BUILD_ID}" > BUILD_ID && make -j"$(nproc)" USE_CUDA=0 && make install USE_CUDA=0 DESTDIR=/out PREFIX=/usr/local

# cuDNN and NCCL come as wheels for the CUDA of the base image, in NVIDIA_WHEELS, where `make` looks for them.
FROM build-cpu AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/nvidia && /opt/nvidia/bin/pip install --no-cache-dir "nvidia-cudnn-cu${CUDA_VERSION%%.*}" "nvidia-nccl-cu${CUDA_VERSION%%.*}"
RUN make -j"$(nproc)" USE_CUDA=1 NVIDIA_WHEELS="$(echo /opt/nvidia/lib/python3*/site-packages/nvidia)" && \
    make install USE_CUDA=1 DESTDIR=/out PREFIX=/usr/local NVIDIA_WHEELS="$(echo /opt/nvidia/lib/python3*/site-packages/nvidia)"

FROM ${RUNTIME} AS run
ENV DEBIAN_FRONTEND=noninteractive
# sshd is for mpirun on several hosts (scripts/cluster/mpijob.yaml), rclone for checkpoints in a bucket, prometheus-client for --log-to.
# torchrun is not here: --nproc-per-node needs none. Host keys would be those of every copy: `sshd -h` names the job's.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl libgomp1 openmpi-bin openssh-client openssh-server \
    python3 python3-prometheus-client rclone && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*_key* && mkdir -p /run/sshd
WORKDIR /data
ENTRYPOINT ["train_gpt"]

FROM run AS cuda
COPY --from=build-cuda /opt/nvidia /opt/nvidia
COPY --from=build-cuda /out /

FROM run AS cpu
COPY --from=build-cpu /out /
