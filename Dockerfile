# The operator's image: two static binaries and nothing else.
# Binaries are cross-compiled, so that a build for another architecture needs no emulation.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=0.1.0
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY main.go ./
COPY api/ api/
COPY cmd/ cmd/
COPY controllers/ controllers/
COPY internal/ internal/
ENV CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH}
RUN go build -trimpath -ldflags "-s -w -X github.com/kumki-dev/kumki/internal/version.Version=${VERSION}" -o /out/kumki . \
 && go build -trimpath -ldflags "-s -w -X github.com/kumki-dev/kumki/internal/version.Version=${VERSION}" -o /out/kumki-wal ./cmd/kumki-wal

FROM scratch
LABEL org.opencontainers.image.title="kumki" \
      org.opencontainers.image.description="PostgreSQL operator for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/kumki /out/kumki-wal /
# Any numeric user that is not root will do; group 0 as OpenShift gives it.
USER 65532:0
ENTRYPOINT ["/kumki"]
