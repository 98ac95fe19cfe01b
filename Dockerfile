# Builds with docker, buildah and podman: no daemon-only features. Both stages use the same base, because the
# virtual environment names its interpreter by path.
#
#   docker build --tag penstock .
#   docker build --tag penstock --build-arg EXTRAS=server,sheets,billing,apps .
ARG BASE=docker.io/library/python:3.12-slim-trixie

FROM ${BASE} AS build
ARG UV_VERSION=0.13.8
ARG EXTRAS=server,sheets,billing,otel
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1
WORKDIR /src
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir "uv==${UV_VERSION}" && python3 -m venv --without-pip /opt/penstock
# Dependencies first: a change of the code does not install them again. Versions and hashes come from the lock file.
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY penstock/__init__.py penstock/__init__.py
RUN /opt/uv/bin/uv pip install --python /opt/penstock/bin/python --constraint requirements.lock ".[${EXTRAS}]" \
 && /opt/uv/bin/uv pip uninstall --python /opt/penstock/bin/python penstock
COPY penstock penstock
RUN /opt/uv/bin/uv pip install --python /opt/penstock/bin/python --no-deps .

FROM ${BASE}
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PENSTOCK_HOME=/tmp/penstock
# Your own image adds its code here: FROM penstock, COPY mysite /app/mysite.
WORKDIR /app
ENV PYTHONPATH=/app
# Numeric, so that Kubernetes can check runAsNonRoot.
USER 10001:10001
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["penstock"]
CMD ["--help"]
