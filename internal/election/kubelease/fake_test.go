package kubelease_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// object is a Kubernetes object without a type.
type object = map[string]any

// fake is an API server with leases of one namespace, as far as the client uses it.
type fake struct {
	mu      sync.Mutex
	version int
	leases  map[string]object
	changes chan struct{} // closed and replaced at each change
	log     []object      // watch events
	// before is called with each request that writes; false: the answer is lost after the write was done.
	before func(*http.Request) bool
}

func newFake(t *testing.T) (*fake, *httptest.Server) {
	f := &fake{version: 100, leases: map[string]object{}, changes: make(chan struct{})}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s
}

// endedToken is of a caller that is not known any more.
const endedToken = "ended"

const collection = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") == "Bearer "+endedToken {
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(object{"message": "Unauthorized"})
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, collection), "/")
	if r.URL.Query().Get("watch") == "true" {
		f.watch(w, r)
		return
	}
	keep := f.before == nil || r.Method == http.MethodGet || f.before(r)
	status, body := f.answer(r, name)
	if !keep {
		<-r.Context().Done()
		return
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (f *fake) answer(r *http.Request, name string) (int, object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var sent object
	if r.Method == http.MethodPut {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			return http.StatusBadRequest, object{"message": err.Error()}
		}
	}
	switch r.Method {
	case http.MethodPut:
		meta := sent["metadata"].(object)
		switch old := f.leases[name]; {
		case old == nil && meta["uid"] != nil:
			return http.StatusConflict, object{"message": "it was deleted"}
		case old == nil:
			meta["uid"] = fmt.Sprint("uid", f.version)
			return http.StatusCreated, f.put(name, sent, "ADDED")
		case meta["resourceVersion"] == nil:
			return http.StatusUnprocessableEntity, object{"message": "metadata.resourceVersion: must be specified for an update"}
		case meta["resourceVersion"] != old["metadata"].(object)["resourceVersion"]:
			return http.StatusConflict, object{"message": "conflict"}
		}
		return http.StatusOK, f.put(name, sent, "MODIFIED")
	case http.MethodDelete:
		gone := f.leases[name]
		delete(f.leases, name)
		f.emit("DELETED", gone)
		return http.StatusOK, object{}
	}
	if f.leases[name] == nil {
		return http.StatusNotFound, object{"message": "not found"}
	}
	return http.StatusOK, f.leases[name]
}

func (f *fake) put(name string, l object, kind string) object {
	f.leases[name] = l
	f.emit(kind, l)
	return l
}

func (f *fake) emit(kind string, l object) {
	f.version++
	b, _ := json.Marshal(l)
	var c object
	_ = json.Unmarshal(b, &c)
	for _, o := range []object{l, c} {
		o["metadata"].(object)["resourceVersion"] = strconv.Itoa(f.version)
	}
	f.log = append(f.log, object{"type": kind, "object": c})
	close(f.changes)
	f.changes = make(chan struct{})
}

func (f *fake) watch(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for sent := 0; ; {
		f.mu.Lock()
		log, changes := f.log, f.changes
		f.mu.Unlock()
		for ; sent < len(log); sent++ {
			version, _ := strconv.Atoi(log[sent]["object"].(object)["metadata"].(object)["resourceVersion"].(string))
			if version > from {
				_ = json.NewEncoder(w).Encode(log[sent])
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-changes:
		case <-r.Context().Done():
			return
		}
	}
}

// refuse answers every request with a status.
func refuse(t *testing.T, status int) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, `{"message":"no"}`)
	}))
	t.Cleanup(s.Close)
	return s
}

const soon = 5 * time.Second
