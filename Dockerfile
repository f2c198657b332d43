# One image for all own services: Airflow's parts, Spark's master and workers, percolator's workers.
# docs/how-to/deploy.md explains its use.
FROM python:3.11-slim-bookworm

# Java for Spark. All other software of the image is in requirements.lock.
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /srv/percolator percolator

# The lock alone first: this layer, the large one, is built again only when it changes. pyspark is a source archive;
# it is built with the locked setuptools, and nothing is installed whose hash the lock does not hold.
COPY requirements.lock /build/
RUN awk '/^[^ #]/ {wanted = /^setuptools==/} wanted' /build/requirements.lock > /build/setuptools.lock \
    && pip install --no-cache-dir --require-hashes -r /build/setuptools.lock \
    && pip install --no-cache-dir --no-build-isolation --use-pep517 --require-hashes -r /build/requirements.lock

COPY pyproject.toml README.md LICENSE CHANGELOG.md /build/
COPY percolator_core /build/percolator_core
COPY percolator_bench /build/percolator_bench
COPY percolator_torture /build/percolator_torture
COPY plugins /build/plugins
COPY pyspark_percolator /build/pyspark_percolator
RUN pip install --no-cache-dir --no-index --no-deps --no-build-isolation /build && rm -rf /build

COPY tools/airflow-init.sh /usr/local/bin/airflow-init
COPY dags /srv/percolator/dags
COPY schemas /srv/percolator/schemas
COPY observers /srv/percolator/observers
# Named volumes get the owner and mode of these folders.
RUN mkdir -p -m 0750 /srv/percolator/airflow/logs /srv/percolator/airflow/percolator /srv/percolator/login \
        /srv/percolator/serving /srv/percolator/spark \
    && chown -R percolator:percolator /srv/percolator/airflow /srv/percolator/login \
        /srv/percolator/serving /srv/percolator/spark

WORKDIR /srv/percolator
USER percolator
ENV AIRFLOW_HOME=/srv/percolator/airflow \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SPARK_WORKER_DIR=/srv/percolator/spark
STOPSIGNAL SIGTERM
