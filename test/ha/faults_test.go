package ha

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

var _ = Describe("a cluster of three", func() {
	for _, durability := range []string{"Preferred", "Required"} {
		Context("with durability "+durability, func() {
			var c *cluster
			BeforeEach(func() {
				c = newCluster(3, func(cfg *instanceapi.Config) { cfg.Durability = durability })
				c.settle()
			})

			It("loses nothing when its primaries are killed one after the other in every way", func() {
				w, check := c.write()
				acked(w)
				for _, fault := range []struct {
					name string
					do   func(*instance)
				}{
					{"SIGKILL of the postmaster", func(in *instance) { Expect(syscall.Kill(in.postmaster(), syscall.SIGKILL)).To(Succeed()) }},
					{"SIGKILL of the manager", func(in *instance) {
						in.signal(syscall.SIGKILL)
						Eventually(in.processes, 10*time.Second).Should(BeEmpty(), "the guard ends PostgreSQL when the manager is gone")
						<-in.done
						in.start()
					}},
					{"SIGSTOP of the postmaster", func(in *instance) { Expect(syscall.Kill(in.postmaster(), syscall.SIGSTOP)).To(Succeed()) }},
					{"hand-over by SIGTERM", func(in *instance) {
						in.terminate()
						in.newPod()
						in.start()
					}},
				} {
					By(fault.name)
					old := c.settle()
					begin := time.Now()
					fault.do(old)
					now := c.newPrimary(old)
					AddReportEntry(durability+": "+fault.name, fmt.Sprintf("%s -> %s in %.2f s", old.name, now.name, time.Since(begin).Seconds()))
					acked(w)
				}
				c.settle()
				check()
			})

			It("fences a primary whose manager is stopped, and takes it back", func() {
				w, check := c.write()
				acked(w)
				old := c.settle()
				old.signal(syscall.SIGSTOP)
				Eventually(old.processes, 12*time.Second).Should(BeEmpty(), "the guard ends PostgreSQL at the deadline")
				c.newPrimary(old)
				acked(w)
				old.signal(syscall.SIGCONT)
				c.settle()
				check()
			})
		})
	}

	It("keeps serving when a backend or the guard is killed", func() {
		c := newCluster(3, nil)
		p := c.settle()
		w, check := c.write()
		acked(w)
		guard, err := p.guard()
		Expect(err).NotTo(HaveOccurred())
		Expect(syscall.Kill(guard, syscall.SIGKILL)).To(Succeed())
		Eventually(p.guard, 10*time.Second).ShouldNot(Equal(guard), "a guard that died is started again")
		for pid, title := range p.processes() {
			if strings.Contains(title, "app app") {
				Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
				break
			}
		}
		acked(w)
		c.settle()
		check()
	})

	It("survives two failovers within ten seconds", func() {
		c := newCluster(3, nil)
		first := c.settle()
		w, check := c.write()
		acked(w)
		Expect(syscall.Kill(first.postmaster(), syscall.SIGKILL)).To(Succeed())
		second := c.newPrimary(first)
		Expect(syscall.Kill(second.postmaster(), syscall.SIGKILL)).To(Succeed())
		acked(w)
		c.settle()
		check()
	})

	It("does not wait for the lease to run out when the primary's pod was deleted by force", func() {
		c := newCluster(3, nil)
		old := c.settle()
		w, check := c.write()
		acked(w)
		zero := int64(0)
		Expect(client.CoreV1().Pods(namespace).Delete(context.Background(), old.name, metav1.DeleteOptions{GracePeriodSeconds: &zero})).To(Succeed())
		old.unknown() // from now on it cannot let go of the lease itself
		begin := time.Now()
		old.signal(syscall.SIGTERM)
		c.newPrimary(old)
		took := time.Since(begin)
		Eventually(old.done, 30*time.Second).Should(BeClosed())
		acked(w)
		r, err := c.record()
		Expect(err).NotTo(HaveOccurred())
		Expect(r.HolderUID).NotTo(Equal(old.podUID))
		Expect(took).To(BeNumerically("<", election.DefaultTiming().FenceAfter), "a peer let go of the lease for it")
		old.newPod()
		old.start()
		c.settle()
		check()
	})

	It("goes on when the Lease object is deleted", func() {
		c := newCluster(3, nil)
		p := c.settle()
		w, check := c.write()
		acked(w)
		before, err := c.record()
		Expect(err).NotTo(HaveOccurred())
		Expect(client.CoordinationV1().Leases(namespace).Delete(context.Background(), naming.Lease(c.name), metav1.DeleteOptions{})).To(Succeed())
		Eventually(func() (int64, error) {
			r, err := c.record()
			return r.Term, err
		}, 15*time.Second).Should(BeNumerically(">", before.Term))
		l, err := client.CoordinationV1().Leases(namespace).Get(context.Background(), naming.Lease(c.name), metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(l.Labels).To(HaveKeyWithValue(naming.LabelCluster, c.name), "the operator takes a Lease without it for a foreign one")
		Expect(c.settle()).To(BeIdenticalTo(p), "the primary stays")
		acked(w)
		check()
	})

	It("clones a standby whose volume is gone, and rewinds a primary that diverged", func() {
		c := newCluster(3, nil)
		p := c.settle()
		var standby *instance
		for _, in := range c.instances {
			if in != p {
				standby = in
			}
		}
		standby.terminate()
		standby.wipe()
		standby.newPod()
		standby.start()
		c.settle()
		By("a primary that is cut from its standbys has WAL that nobody else has")
		w, check := c.write()
		acked(w)
		Expect(syscall.Kill(p.postmaster(), syscall.SIGKILL)).To(Succeed())
		c.newPrimary(p)
		acked(w)
		c.settle()
		check()
	})

	It("points the Service for writes at the primary", func() {
		c := newCluster(3, nil)
		p := c.settle()
		target := func() (string, error) {
			s, err := client.CoreV1().Services(namespace).Get(context.Background(), naming.ServiceRW(c.name), metav1.GetOptions{})
			return s.Spec.Selector[naming.LabelPod], err
		}
		Eventually(target).Should(Equal(p.name))
		var to string
		for _, in := range c.instances {
			if in != p {
				to = in.name
			}
		}
		reply, err := c.api.Handover(context.Background(), p.member().Target(), instanceapi.HandoverRequest{To: to, Reason: "test"})
		Expect(err).NotTo(HaveOccurred())
		Expect(reply.Error).To(BeEmpty())
		Eventually(target, 20*time.Second, 50*time.Millisecond).Should(Equal(to))
		Expect(c.settle().name).To(Equal(to))

		By("deleting the Service, and making it again without a selector as the operator does")
		services := client.CoreV1().Services(namespace)
		Expect(services.Delete(context.Background(), naming.ServiceRW(c.name), metav1.DeleteOptions{})).To(Succeed())
		c.newService()
		Eventually(target, 20*time.Second, 50*time.Millisecond).Should(Equal(to))
	})

	It("takes back what ALTER SYSTEM set of its own settings, before commits are lost by it", func() {
		c := newCluster(3, nil)
		p := c.settle()
		names := p.psql("SHOW synchronous_standby_names")
		Expect(names).To(ContainSubstring("ANY 1"))
		p.psql("ALTER SYSTEM SET synchronous_standby_names = ''")
		p.psql("ALTER SYSTEM SET shared_buffers = '900GB'")
		p.psql("SELECT pg_reload_conf()")
		// Sessions may show the old names for a moment longer, so what proves that something was taken back is the file.
		Eventually(func() (string, error) {
			auto, err := os.ReadFile(filepath.Join(p.dir, "data", "current", "postgresql.auto.conf"))
			return string(auto), err
		}, 20*time.Second, 100*time.Millisecond).ShouldNot(Or(ContainSubstring("900GB"), ContainSubstring("synchronous_standby_names =")))
		Eventually(func() string { return p.psql("SHOW synchronous_standby_names") }, 20*time.Second, 100*time.Millisecond).Should(Equal(names))
		c.settle()
	})

	It("goes on when a parameter keeps every new session out, and says which", func() {
		c := newCluster(2, nil)
		p := c.settle()
		w, check := c.write()
		acked(w)
		c.config.Parameters["session_preload_libraries"] = "nosuchlibrary"
		c.writeConfig()
		Eventually(func() (string, error) {
			s, err := p.status()
			if err != nil || s.ConfigError == nil {
				return "", err
			}
			return s.ConfigError.Parameter, nil
		}, 20*time.Second, 100*time.Millisecond).Should(Equal("session_preload_libraries"))
		Eventually(func() string { return p.psql("SHOW session_preload_libraries") }, 20*time.Second, 100*time.Millisecond).Should(BeEmpty())
		acked(w)
		delete(c.config.Parameters, "session_preload_libraries")
		c.writeConfig()
		Eventually(func() (bool, error) {
			s, err := p.status()
			return s.ConfigError == nil, err
		}, 20*time.Second, 100*time.Millisecond).Should(BeTrue())
		c.settle()
		check()
	})

	It("starts a standby with the configuration that worked when the new one keeps it from starting", func() {
		c := newCluster(2, nil)
		p := c.settle()
		standby := c.instances[0]
		if standby == p {
			standby = c.instances[1]
		}
		c.config.Parameters["shared_preload_libraries"] = "nosuchlibrary"
		c.writeConfig()
		Eventually(func() (int, error) {
			s, err := standby.status()
			return len(s.PendingRestart), err
		}, 20*time.Second, 100*time.Millisecond).Should(BeNumerically(">", 0))
		Expect(c.api.Restart(context.Background(), standby.member().Target(), instanceapi.RestartRequest{Reason: "test"})).To(Succeed())
		Eventually(func() (string, error) {
			s, err := standby.status()
			if err != nil || s.ConfigError == nil {
				return "", err
			}
			return s.ConfigError.Message, nil
		}, 30*time.Second, 100*time.Millisecond).Should(ContainSubstring("nosuchlibrary"))
		Expect(c.settle()).To(BeIdenticalTo(p), "the primary was not touched, and the standby streams again")
	})
})

var _ = Describe("a cluster of two", func() {
	It("goes on alone when its standby is gone, and nobody else may lead until it has caught up", func() {
		c := newCluster(2, nil)
		p := c.settle()
		w, check := c.write()
		acked(w)
		var standby *instance
		for _, in := range c.instances {
			if in != p {
				standby = in
			}
		}
		standby.terminate()
		acked(w)
		r, err := c.record()
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Quorums).To(HaveLen(1))
		Expect(r.Quorums[0].Standbys).To(BeEmpty(), "primary only is recorded")
		Expect(syscall.Kill(p.postmaster(), syscall.SIGKILL)).To(Succeed())
		standby.start()
		acked(w)
		Expect(c.settle()).To(BeIdenticalTo(p), "the only copy comes back as primary")
		check()
	})
})

var _ = Describe("a single instance", func() {
	It("comes back by itself", func() {
		c := newCluster(1, nil)
		p := c.settle()
		w, check := c.write()
		acked(w)
		Expect(syscall.Kill(p.postmaster(), syscall.SIGKILL)).To(Succeed())
		acked(w)
		p.terminate()
		p.newPod()
		p.start()
		acked(w)
		check()
	})
})
