package fault

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Container is a running container of a pod.
type Container struct {
	Node       layout.Node
	Name, ID   string
	CgroupPath string
}

// bundle is what we read of a container's OCI configuration.
type bundle struct {
	Annotations map[string]string `json:"annotations"`
	Linux       struct {
		CgroupsPath string `json:"cgroupsPath"`
	} `json:"linux"`
}

// Containers finds the running containers of a pod, all or the one of a name. It reads what containerd
// keeps on disk for each, so it works while the API server is down or the node is cut off.
func Containers(nodes []layout.Node, namespace, pod, container string) ([]Container, error) {
	var found []Container
	for _, n := range nodes {
		paths, err := filepath.Glob(n.Dir("containerd-state", "io.containerd.runtime.v2.task", "k8s.io", "*", "config.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				continue // it ended meanwhile
			}
			var b bundle
			if err := json.Unmarshal(data, &b); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if !b.belongsTo(namespace, pod, container) {
				continue
			}
			c := Container{
				Node: n, Name: b.Annotations["io.kubernetes.cri.container-name"],
				ID:         filepath.Base(filepath.Dir(path)),
				CgroupPath: strings.TrimPrefix(b.Linux.CgroupsPath, "/"),
			}
			if len(c.Processes()) > 0 {
				found = append(found, c)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no running container of pod %s/%s (container %q) is on any node", namespace, pod, container)
	}
	return found, nil
}

func (b bundle) belongsTo(namespace, pod, container string) bool {
	const prefix = "io.kubernetes.cri."
	a := b.Annotations
	return a[prefix+"container-type"] == "container" && a[prefix+"sandbox-namespace"] == namespace &&
		a[prefix+"sandbox-name"] == pod && (container == "" || a[prefix+"container-name"] == container)
}

// Processes returns the pids, on the host, of the container's processes.
func (c Container) Processes() []int { return host.CgroupProcesses(c.CgroupPath) }

// SetFrozen freezes or thaws the container.
func (c Container) SetFrozen(frozen bool) error { return host.SetFrozen(c.CgroupPath, frozen) }
