package footprint

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func rssFile(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindStringSubmatch(string(b))
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestProgramGoesOnWithFewerPages(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil || len(exe) == 0 {
		t.Fatal(err)
	}
	before := rssFile(t)
	if err := DropProgramPages(); err != nil {
		t.Fatal(err)
	}
	after := rssFile(t)
	if after >= before {
		t.Errorf("%d kB of the program are resident, before %d kB", after, before)
	}
	if got := strings.ToUpper("still runs"); got != "STILL RUNS" {
		t.Error(got)
	}
}
