package ha

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// chaosTime is how long faults come: KUMKI_HA_CHAOS, a duration like 10m.
func chaosTime() time.Duration {
	d := 40 * time.Second
	if text := os.Getenv("KUMKI_HA_CHAOS"); text != "" {
		var err error
		d, err = time.ParseDuration(text)
		Expect(err).NotTo(HaveOccurred(), "KUMKI_HA_CHAOS")
	}
	return d
}

// chaos breaks things at random. What is stopped or dead is put right a while later.
type chaos struct {
	*cluster
	rng  *rand.Rand
	said []string
	// mend holds what is to be done at a time.
	mend []mending
}

type mending struct {
	at time.Time
	do func()
}

func (c *chaos) say(format string, args ...any) {
	text := time.Now().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
	c.said = append(c.said, text)
	GinkgoWriter.Println(text)
}

func (c *chaos) later(atLeast, atMost time.Duration, do func()) {
	c.mend = append(c.mend, mending{time.Now().Add(atLeast + time.Duration(c.rng.Int64N(int64(atMost-atLeast)))), do})
}

// due puts right whose time has come; all of it at the end.
func (c *chaos) due(all bool) {
	rest := c.mend
	c.mend = nil
	for _, m := range rest {
		if all || time.Now().After(m.at) {
			m.do()
		} else {
			c.mend = append(c.mend, m)
		}
	}
}

// running says that the instance's manager runs.
func (in *instance) running() bool {
	select {
	case <-in.done:
		return false
	default:
		return true
	}
}

// postmasters of an instance, if there are any.
func (c *chaos) hitPostmaster(in *instance, s syscall.Signal) {
	for pid, title := range in.processes() {
		if len(title) > 0 && title[0] == '/' { // backends have titles of their own
			_ = syscall.Kill(pid, s)
		}
	}
}

// strike does one thing to one instance, or to the cluster.
func (c *chaos) strike() {
	in := c.instances[c.rng.IntN(len(c.instances))]
	if c.rng.IntN(3) > 0 { // the primary is what matters
		if p, err := c.primary(); err == nil {
			in = p
		}
	}
	switch c.rng.IntN(9) {
	case 0:
		c.say("%s: SIGKILL of the postmaster", in.name)
		c.hitPostmaster(in, syscall.SIGKILL)
	case 1:
		c.say("%s: SIGSTOP of the postmaster", in.name)
		c.hitPostmaster(in, syscall.SIGSTOP)
	case 2:
		if in.running() {
			c.say("%s: SIGKILL of the manager", in.name)
			in.signal(syscall.SIGKILL)
			<-in.done
			c.later(100*time.Millisecond, 8*time.Second, func() { c.start(in) })
		}
	case 3:
		if in.running() {
			c.say("%s: SIGSTOP of the manager", in.name)
			in.signal(syscall.SIGSTOP)
			cmd := in.cmd
			c.later(500*time.Millisecond, 20*time.Second, func() { c.say("%s: SIGCONT", in.name); _ = cmd.Process.Signal(syscall.SIGCONT) })
		}
	case 4:
		c.leave(in)
	case 5:
		c.say("the Lease is deleted")
		_ = client.CoordinationV1().Leases(namespace).Delete(context.Background(), naming.Lease(c.name), metav1.DeleteOptions{})
	case 6:
		to := c.instances[c.rng.IntN(len(c.instances))].name
		c.say("%s: hand-over to %s is asked for", in.name, to)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, _ = c.api.Handover(ctx, in.member().Target(), instanceapi.HandoverRequest{To: to, Reason: "chaos"})
		cancel()
	case 7:
		if guard, err := in.guard(); err == nil {
			c.say("%s: SIGKILL of the guard", in.name)
			_ = syscall.Kill(guard, syscall.SIGKILL)
		}
	case 8:
		c.config.Durability = map[string]string{"Preferred": "Required", "Required": "Preferred"}[c.config.Durability]
		c.say("durability %s", c.config.Durability)
		c.writeConfig()
	}
}

// leave deletes the pod, at times by force: its token ends while it still runs. The next pod has the same volume.
func (c *chaos) leave(in *instance) {
	if !in.running() {
		return
	}
	forced := c.rng.IntN(2) == 0
	c.say("%s: SIGTERM, deleted by force: %t", in.name, forced)
	if forced {
		zero := int64(0)
		_ = client.CoreV1().Pods(namespace).Delete(context.Background(), in.name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	}
	in.signal(syscall.SIGTERM)
	c.later(3*time.Second, 10*time.Second, func() {
		if in.running() { // it still is, or was started again meanwhile
			_ = in.cmd.Process.Signal(syscall.SIGCONT)
			in.terminate()
		}
		c.say("%s: a new pod", in.name)
		in.newPod()
		c.start(in)
	})
}

// start an instance that does not run.
func (c *chaos) start(in *instance) {
	if !in.running() {
		c.say("%s starts", in.name)
		in.start()
	}
}

var _ = Describe("a cluster of three under whatever comes", func() {
	It("loses nothing, never has two primaries, and is whole again by itself", func() {
		c := &chaos{cluster: newCluster(3, nil), rng: rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 1))}
		c.settle()
		w, check := c.write()
		acked(w)
		DeferCleanup(func() {
			if CurrentSpecReport().Failed() {
				for _, text := range c.said {
					GinkgoWriter.Println(text)
				}
			}
		})
		for end := time.Now().Add(chaosTime()); time.Now().Before(end); {
			c.strike()
			next := time.Now().Add(time.Duration(c.rng.IntN(7000)) * time.Millisecond)
			Eventually(func() bool { c.due(false); return time.Now().After(next) }, 2*time.Minute, 50*time.Millisecond).Should(BeTrue())
		}
		for len(c.mend) > 0 {
			c.due(true)
		}
		for _, in := range c.instances {
			_ = in.cmd.Process.Signal(syscall.SIGCONT)
			c.start(in)
		}
		Eventually(c.healthy, 3*time.Minute, 200*time.Millisecond).Should(Succeed())
		acked(w)
		check()
		AddReportEntry("faults", fmt.Sprint(len(c.said)))
	})
})
