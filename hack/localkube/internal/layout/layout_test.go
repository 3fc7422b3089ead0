package layout

import "testing"

func TestNodeByName(t *testing.T) {
	for name, want := range map[string]int{
		"node-1": 1, "node-9": 9, "node-0": 0, "node-10": 0, "node-01": 0, "node-1x": 0, "other": 0, "": 0,
	} {
		n, err := NodeByName(name)
		if (err == nil) != (want != 0) || n.Index != want {
			t.Errorf("NodeByName(%q) = %v, %v; want index %d", name, n, err, want)
		}
	}
}

func TestNamesFitAndDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, n := range Nodes(MaxNodes) {
		if len(n.Veth()) > 15 {
			t.Errorf("the kernel takes no interface name as long as %q", n.Veth())
		}
		if !IsOurLink(n.Veth()) {
			t.Errorf("down would not find %q", n.Veth())
		}
		for _, s := range []string{n.Address(), n.PodCIDR(), n.NetNS(), n.Veth(), n.Cgroup()} {
			if other, ok := seen[s]; ok {
				t.Errorf("%s and %s share %q", n.Name(), other, s)
			}
			seen[s] = n.Name()
		}
	}
	if IsOurLink("eth0") {
		t.Error("down would delete the machine's own interface")
	}
}
