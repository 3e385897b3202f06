# A perdure worker, with the Docker command line for environments; the engine is the host's.
FROM docker:28.2.2-cli AS docker

FROM python:3.11.13-slim-bookworm

COPY --from=docker /usr/local/bin/docker /usr/local/bin/docker
COPY --from=docker /usr/local/libexec/docker/cli-plugins/docker-compose \
    /usr/local/libexec/docker/cli-plugins/docker-compose

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/perdure
COPY pyproject.toml constraints.txt README.md LICENSE worker.py ./
COPY perdure perdure
COPY workflows workflows
COPY activities activities
RUN pip install --constraint constraints.txt .

CMD ["perdure", "worker"]
