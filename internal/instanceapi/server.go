package instanceapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// headerPod names the pod that a request is meant for.
const headerPod = "Kumki-Pod"

// maxBody of a request or an answer, in bytes.
const maxBody = 1 << 20

// Server serves the endpoint of one instance.
type Server struct {
	http   *http.Server
	pod    string
	source Source
	handle Handler
}

// NewServer serves handler as the pod of that name, with the certificates of source.
func NewServer(pod string, source Source, handler Handler) *Server {
	s := &Server{pod: pod, source: source, handle: handler}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		// Failed handshakes of port scanners are nobody's business; failures that matter are seen by the caller.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return s
}

// ListenAndServe serves on addr (host:port) until the context ends; then it lets running requests finish for up to a second.
// It returns nil after that, and an error when it cannot listen.
func (s *Server) ListenAndServe(ctx context.Context, addr string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s for the instance API: %w", addr, err)
	}
	return s.Serve(ctx, l)
}

// Serve is ListenAndServe on a listener, which it closes.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(tls.NewListener(l, serverConfig(s.source))) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.http.Shutdown(last); err != nil {
		_ = s.http.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+pathStatus, s.only([]string{CommonNameOperator, CommonNamePeer}, s.status))
	mux.Handle("POST "+pathPeer, s.only([]string{CommonNamePeer}, s.peer))
	mux.Handle("POST "+pathRelease, s.only([]string{CommonNamePeer}, s.release))
	mux.Handle("POST "+pathHandover, s.only([]string{CommonNameOperator}, s.handover))
	mux.Handle("POST "+pathRestart, s.only([]string{CommonNameOperator}, s.restart))
	return mux
}

// only lets in clients of those common names. The certificate is checked again with each request, because a connection may
// outlive the CA that it was made under.
func (s *Server) only(names []string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := s.source.Identity()
		if err != nil || r.TLS == nil {
			http.Error(w, "the instance has no certificate", http.StatusServiceUnavailable)
			return
		}
		name, err := verify(id, r.TLS.PeerCertificates, x509.ExtKeyUsageClientAuth)
		if err != nil {
			w.Header().Set("Connection", "close")
			http.Error(w, "the client's certificate is not trusted any more", http.StatusUnauthorized)
			return
		}
		if !slices.Contains(names, name) {
			http.Error(w, fmt.Sprintf("%q may not call %s", name, r.URL.Path), http.StatusForbidden)
			return
		}
		if want := r.Header.Get(headerPod); want != s.pod {
			w.Header().Set("Connection", "close")
			http.Error(w, fmt.Sprintf("this is %s, not %s", s.pod, want), http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next(w, r)
	})
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	answer(w, s.handle.Status(r.Context()))
}

func (s *Server) peer(w http.ResponseWriter, r *http.Request) {
	var m election.Message
	if !decode(w, r, &m) {
		return
	}
	reply, err := s.handle.Peer(r.Context(), m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	answer(w, reply)
}

func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	var l election.Lease
	if !decode(w, r, &l) {
		return
	}
	reply, err := s.handle.Release(r.Context(), l)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	answer(w, reply)
}

func (s *Server) handover(w http.ResponseWriter, r *http.Request) {
	var request HandoverRequest
	if decode(w, r, &request) {
		answer(w, s.handle.Handover(r.Context(), request))
	}
}

func (s *Server) restart(w http.ResponseWriter, r *http.Request) {
	var request RestartRequest
	if decode(w, r, &request) {
		accepted(w, s.handle.Restart(r.Context(), request))
	}
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(r.Body).Decode(into)
	if err == nil {
		return true
	}
	code := http.StatusBadRequest
	if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
		code = http.StatusRequestEntityTooLarge
	}
	http.Error(w, "the request is not readable: "+err.Error(), code)
	return false
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a lost connection is the caller's to notice
}

func accepted(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}
