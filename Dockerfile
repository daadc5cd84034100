# arcforge on CPUs:  docker build -t arcforge .  &&  docker run --rm -p 127.0.0.1:8000:8000 arcforge demo host=0.0.0.0
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

WORKDIR /src
COPY VERSION constraints.txt ./
COPY conf conf
COPY packages packages
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX_URL" -c constraints.txt ./packages/*

RUN useradd --create-home arcforge
USER arcforge
WORKDIR /home/arcforge
ENTRYPOINT ["arcforge"]
CMD ["--help"]
