package instance

import (
	"testing"
	"time"
)

func TestCommitGate(t *testing.T) {
	const names, later = `ANY 1 ("c-1")`, 10*time.Second + gateSettle
	reload := func(at time.Duration, names string) func(*commitGate) {
		return func(g *commitGate) { g.reloaded(at, names) }
	}
	look := func(at time.Duration, wait string, stopped bool) func(*commitGate) {
		return func(g *commitGate) { g.looked(at, wait, stopped) }
	}
	start := func(names string) func(*commitGate) { return func(g *commitGate) { g.started(names) } }
	for name, test := range map[string]struct {
		does []func(*commitGate)
		shut bool
	}{
		"nothing is known":                     {nil, false},
		"started with names":                   {[]func(*commitGate){start(names)}, true},
		"started without":                      {[]func(*commitGate){start("")}, false},
		"other names":                          {[]func(*commitGate){start(names), reload(1, `ANY 1 ("c-2")`)}, true},
		"names go":                             {[]func(*commitGate){start(names), reload(1, "")}, false},
		"names may be going":                   {[]func(*commitGate){start(names), (*commitGate).opening}, false},
		"names come":                           {[]func(*commitGate){start(""), reload(10*time.Second, names)}, false},
		"the checkpointer is at rest":          {[]func(*commitGate){start(""), reload(10*time.Second, names), look(later, "CheckpointerMain", false)}, true},
		"it writes slowly":                     {[]func(*commitGate){start(""), reload(10*time.Second, names), look(later, "CheckpointWriteDelay", false)}, true},
		"it works":                             {[]func(*commitGate){start(""), reload(10*time.Second, names), look(later, "", false)}, false},
		"it waits for the disk":                {[]func(*commitGate){start(""), reload(10*time.Second, names), look(later, "DataFileSync", false)}, false},
		"it is stopped":                        {[]func(*commitGate){start(""), reload(10*time.Second, names), look(later, "CheckpointerMain", true)}, false},
		"the look began too early":             {[]func(*commitGate){start(""), reload(10*time.Second, names), look(later-1, "CheckpointerMain", false)}, false},
		"names go again before it was at rest": {[]func(*commitGate){start(""), reload(10*time.Second, names), reload(11*time.Second, ""), look(later, "CheckpointerMain", false)}, false},
		"a second change waits no longer":      {[]func(*commitGate){start(""), reload(10*time.Second, names), reload(later, `ANY 1 ("c-2")`), look(later, "CheckpointerMain", false)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := commitGate{}
			for _, do := range test.does {
				do(&g)
			}
			if g.shut != test.shut {
				t.Errorf("shut is %t", g.shut)
			}
		})
	}
}
