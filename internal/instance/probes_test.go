package instance

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kumki-dev/kumki/internal/pgproc"
)

// The startup probe holds the other two back until the loop runs.
func TestStartupProbeWaitsForTheLoop(t *testing.T) {
	m := testManager(t)
	probes := m.probes()
	ask := func(path string) int {
		w := httptest.NewRecorder()
		probes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	if got := ask("/startupz"); got != http.StatusServiceUnavailable {
		t.Errorf("before the first beat the startup probe is answered with %d", got)
	}
	if got := ask("/livez"); got != http.StatusOK {
		t.Errorf("a process that just began is called wedged: %d", got)
	}
	m.beat.touch(pgproc.Clock())
	if got := ask("/startupz"); got != http.StatusOK {
		t.Errorf("after the first beat the startup probe is answered with %d", got)
	}
	m.beat.touch(pgproc.Clock() - wedgedAfter)
	if got := ask("/startupz"); got != http.StatusOK {
		t.Errorf("a loop that stands still is the liveness probe's to notice, and the startup probe says %d", got)
	}
	if got := ask("/livez"); got != http.StatusServiceUnavailable {
		t.Errorf("a loop that stands still is called alive: %d", got)
	}
}
