# One image for every process of fleetbeat; the command says which (see compose.yaml).

FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements.lock ./
# The lock also pins what developers use. All of it is fetched and checked against its hashes;
# then only what fleetbeat itself needs is installed, from those files and nowhere else.
RUN pip download --no-cache-dir --require-hashes -r requirements.lock -d /wheels
COPY pyproject.toml README.md LICENSE beat_schedule.py ./
COPY scheduler ./scheduler
COPY tasks ./tasks
COPY agent ./agent
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN pip wheel --no-cache-dir --no-index --find-links /wheels --no-deps --wheel-dir /wheels . \
    && python -m venv --without-pip /opt/fleetbeat \
    && pip --python /opt/fleetbeat/bin/python install --no-cache-dir --no-index --find-links /wheels fleetbeat

FROM python:3.12-slim
RUN useradd --system --uid 10001 --user-group --home-dir /data --shell /usr/sbin/nologin fleetbeat \
    && install -d -o fleetbeat -g fleetbeat /data
COPY --from=build /opt/fleetbeat /opt/fleetbeat
ENV PATH=/opt/fleetbeat/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
CMD ["fleetbeat", "front"]
