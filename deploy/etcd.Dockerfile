# etcd from Debian's packages. For work that matters use a release from 3.5.23 on, by ETCD_IMAGE.
ARG BASE=debian:trixie-slim
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends etcd-server etcd-client \
    && rm -rf /var/lib/apt/lists/*
ENV ETCDCTL_API=3
CMD ["etcd"]
