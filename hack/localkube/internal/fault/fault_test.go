package fault

import (
	"slices"
	"strings"
	"testing"
)

func TestSelectRole(t *testing.T) {
	pod := []process{
		{pid: 10, parent: 1, first: true, name: "kumki", argv: []string{"/kumki", "instance"}},
		{pid: 11, parent: 10, name: "kumki", argv: []string{"/kumki", "guard", "--deadline=8s"}},
		{pid: 20, parent: 10, name: "postgres", argv: []string{"/usr/lib/postgresql/15/bin/postgres", "-D", "/data"}},
		{pid: 21, parent: 20, name: "postgres", argv: []string{"postgres: main: checkpointer "}},
		{pid: 22, parent: 20, name: "postgres", argv: []string{"postgres: main: walsender replicator 10.244.1.2(4242) streaming 0/3000060"}},
		{pid: 23, parent: 20, name: "postgres", argv: []string{"postgres: main: app app 10.244.2.7(51234) idle"}},
		{pid: 24, parent: 20, name: "postgres", argv: []string{"postgres: app app [local] UPDATE"}},
		{pid: 25, parent: 20, name: "postgres", argv: []string{"postgres: walreceiver streaming 0/3000060"}},
	}
	for role, want := range map[string][]int{
		Manager: {10}, Guard: {11}, Postmaster: {20}, Backend: {23, 24},
	} {
		if got, err := selectRole(pod, role); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v; want %v", role, got, err, want)
		}
	}
	if _, err := selectRole(pod, "nobody"); err == nil {
		t.Error("an unknown role is an error")
	}
}

func TestInitdbIsNoPostmaster(t *testing.T) {
	booting := []process{
		{pid: 10, first: true, name: "kumki", argv: []string{"/kumki", "instance"}},
		{pid: 20, parent: 10, name: "initdb", argv: []string{"initdb"}},
		{pid: 21, parent: 20, name: "postgres", argv: []string{"postgres", "--boot"}},
	}
	if got, err := selectRole(booting, Postmaster); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v; want none", got, err)
	}
}

func TestCutScript(t *testing.T) {
	script, err := cutScript([]string{FromAPI, "node-2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"in ip saddr 10.89.0.1 tcp sport 6443 drop",
		"out ip daddr 10.89.0.1 tcp dport 6443 drop",
		"in ip saddr { 10.89.0.12, 10.244.2.0/24 } drop",
		"out ip daddr { 10.89.0.12, 10.244.2.0/24 } drop",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("%q is missing in\n%s", want, script)
		}
	}
	if _, err := cutScript([]string{"nowhere"}); err == nil {
		t.Error("an unknown peer is an error")
	}
}

func TestBundleBelongsTo(t *testing.T) {
	b := bundle{Annotations: map[string]string{
		"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-namespace": "ns",
		"io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.container-name": "postgres",
	}}
	for _, c := range []struct {
		namespace, pod, container string
		want                      bool
	}{
		{"ns", "pod", "", true},
		{"ns", "pod", "postgres", true},
		{"ns", "pod", "other", false},
		{"ns", "pod-2", "", false},
		{"default", "pod", "", false},
	} {
		if got := b.belongsTo(c.namespace, c.pod, c.container); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
	b.Annotations["io.kubernetes.cri.container-type"] = "sandbox"
	if b.belongsTo("ns", "pod", "") {
		t.Error("the pause process is no container of the pod")
	}
}
