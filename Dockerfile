# longspan serve on a CPU:
#   docker build -t longspan .
#   docker run -p 8000:8000 -e LONGSPAN_API_KEY=secret -v longspan:/data longspan
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src ./src
# The kernels are compiled here, for each level of vectors, so the image needs no compiler. The index's torch has CUDA, 2.8 GB;
# this one has not.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && LONGSPAN_WHEEL=platform PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu pip install --no-cache-dir -c constraints.txt '.[gguf,serve]' \
    && apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/*

# Models and documents are in /data.
RUN useradd --create-home longspan && mkdir -p /data/documents && chown -R longspan /data
USER longspan
WORKDIR /data
ENV XDG_CACHE_HOME=/data/cache LONGSPAN_DOCUMENTS=/data/documents LONGSPAN_MODEL=bundled LONGSPAN_HOST=0.0.0.0
VOLUME /data
EXPOSE 8000

# It refuses to listen beyond the machine without LONGSPAN_API_KEY.
ENTRYPOINT ["longspan"]
CMD ["serve"]
