# One image holds the three programs; compose or an orchestrator picks one.
#
#   docker build -t leeway .

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags='-s -w' -o /out/ ./cmd/api ./cmd/worker ./cmd/leeway

# Nothing but the programs, and the certificates that backends are checked with.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /
COPY LICENSE /LICENSE
USER 65532:65532

# Inside a container the API must listen on all its addresses to be reached;
# outside of one it listens on loopback unless told otherwise.
ENV LEEWAY_ADDR=:8080 \
    LEEWAY_METRICS_ADDR=:9090 \
    LEEWAY_WORKER_METRICS_ADDR=:9091
EXPOSE 8080 9090 9091

# /livez never touches Redis: a container is not restarted because Redis is away.
HEALTHCHECK --interval=5s --timeout=2s --start-period=5s --retries=3 \
    CMD ["/leeway", "healthcheck", "http://127.0.0.1:8080/livez"]
CMD ["/api"]
