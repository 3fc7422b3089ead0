package cluster

import (
	"encoding/json"
	"testing"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

func TestRepairable(t *testing.T) {
	t.Setenv("KUMKI_STATE", t.TempDir())
	c, nodes := New(t.Logf), layout.Nodes(3)
	for _, test := range []struct {
		missing []string
		want    bool
	}{
		{[]string{"kube-apiserver", "node-2-kubelet"}, true},
		{[]string{"node-1-containerd"}, false}, // its mount namespace went with it
		{[]string{"network of node-3"}, false},
		{[]string{"nodes"}, false},
		{[]string{"node-4-kubelet"}, false},
	} {
		if got := c.repairable(nodes, test.missing); got != test.want {
			t.Errorf("repairable(%v) = %v", test.missing, got)
		}
	}
}

func TestKubeletConfigIsItsOwn(t *testing.T) {
	t.Setenv("KUMKI_STATE", "/state")
	// What two kubelets share, one of them deletes under the other.
	seen := map[string]bool{}
	for _, n := range layout.Nodes(2) {
		data, err := kubeletConfig(n)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(data, &config); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"podLogsDir", "volumePluginDir", "cgroupRoot", "containerRuntimeEndpoint", "address"} {
			value, _ := config[key].(string)
			if value == "" || seen[value] {
				t.Errorf("%s: %s %q is missing or shared", n.Name(), key, value)
			}
			seen[value] = true
		}
	}
}
