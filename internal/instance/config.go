package instance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// config is a read instance.json and the hash of its bytes.
type config struct {
	instanceapi.Config
	hash string
	raw  []byte
}

// readConfig reads dir/instance.json.
func readConfig(dir string) (*config, error) {
	raw, err := os.ReadFile(filepath.Join(dir, naming.KeyConfig))
	if err != nil {
		return nil, err
	}
	return parseConfig(raw)
}

func parseConfig(raw []byte) (*config, error) {
	c := config{raw: raw}
	if err := json.Unmarshal(raw, &c.Config); err != nil {
		return nil, fmt.Errorf("%s is not valid: %w", naming.KeyConfig, err)
	}
	if len(c.Members) == 0 {
		return nil, fmt.Errorf("%s names no members", naming.KeyConfig)
	}
	sum := sha256.Sum256(raw)
	c.hash = hex.EncodeToString(sum[:])
	return &c, nil
}

// member is the entry of a pod, nil when it is not one of the cluster's.
func (c *config) member(pod string) *instanceapi.Member {
	for i := range c.Members {
		if c.Members[i].Name == pod {
			return &c.Members[i]
		}
	}
	return nil
}

// others are the names of all members but one.
func (c *config) others(pod string) []string {
	var names []string
	for _, m := range c.Members {
		if m.Name != pod {
			names = append(names, m.Name)
		}
	}
	return names
}

// targets are where all members but one are reached.
func (c *config) targets(pod string) []instanceapi.Target {
	var targets []instanceapi.Target
	for _, m := range c.Members {
		if m.Name != pod {
			targets = append(targets, m.Target())
		}
	}
	return targets
}

// election is what the leadership core needs of it.
func (c *config) election(o *Options) election.Config {
	members := make([]string, 0, len(c.Members))
	for _, m := range c.Members {
		members = append(members, m.Name)
	}
	return election.Config{
		Self: o.Pod, SelfUID: o.PodUID, Members: members, Durability: election.Durability(c.Durability),
		Num: c.SynchronousStandbys, MaxLag: c.MaxLagForPromotion, Bootstrap: c.SystemIdentifier == "" && !c.NoBootstrap, Suspended: c.Suspend, Timing: o.Timing,
	}
}

// secret reads one key of a mounted Secret; "" when it is not there.
func secret(dir, key string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}
