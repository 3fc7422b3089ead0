package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

const testCluster = "orders-7300000000000000001"

func testNow() time.Time { return time.Date(2026, 11, 30, 15, 45, 1, 0, time.UTC) }

func putBackup(t testing.TB, store Store, b *Backup) {
	t.Helper()
	content, err := b.encode()
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, path.Join(BackupDir(testCluster, b.ID), CommitMark), content)
}

func put(t testing.TB, store Store, key string, content []byte) {
	t.Helper()
	if err := store.Create(context.Background(), key, bytes.NewReader(content), nil); err != nil {
		t.Fatal(err)
	}
}

func TestBackupIDsSortByTime(t *testing.T) {
	g := NewWithT(t)
	var ids []string
	for i := range 50 {
		ids = append(ids, NewBackupID(testNow().Add(time.Duration(i)*37*time.Minute).In(time.FixedZone("", 7200))))
	}
	g.Expect(slices.IsSorted(ids)).To(BeTrue(), "%v", ids)
	g.Expect(ids[0]).To(HavePrefix("20261130T154501Z-"))
	g.Expect(NewBackupID(testNow())).NotTo(Equal(ids[0]), "two of the same second")
	for _, id := range ids {
		g.Expect(checkID(id)).To(Succeed())
	}
	for _, id := range []string{"", "..", "20261130T154501Z", "20261130T154501Z-", "20261130T154501Z-a/b", "20261330T154501Z-aa", "x-aa"} {
		g.Expect(checkID(id)).NotTo(Succeed(), "%q", id)
	}
}

func TestBackupReadsBackAsWritten(t *testing.T) {
	g := NewWithT(t)
	store := NewMemory(testNow)
	b := &Backup{ID: NewBackupID(testNow()), Cluster: "orders", StartLSN: 0x2000028, StopLSN: 0x2000100, StartedAt: testNow(),
		Parts: []Part{{Name: "base.001.tar.zst", Size: 5, PlainSize: 10, SHA256: "ab"}}, Tablespaces: []Tablespace{{16385, "/a \"b\""}}}
	putBackup(t, store, b)
	g.Expect(ReadBackup(t.Context(), store, testCluster, b.ID)).To(Equal(b))

	key := path.Join(BackupDir(testCluster, b.ID), CommitMark)
	content, _ := b.encode()
	for i := range content {
		store.Change(key, func(c []byte) []byte { c[i] ^= 1; return c })
		_, err := ReadBackup(t.Context(), store, testCluster, b.ID)
		var damaged *DamagedError
		g.Expect(errors.As(err, &damaged)).To(BeTrue(), "byte %d of %d: %v", i, len(content), err)
		store.Change(key, func(c []byte) []byte { c[i] ^= 1; return c[:len(c):len(c)] })
	}

	later := bytes.Replace(content[:bytes.LastIndex(content, []byte(checksumStart))], []byte("{\n"), []byte("{\n  \"later\": [1],\n"), 1)
	later = fmt.Appendf(later, "%s%x%s", checksumStart, sha256.Sum256(later), checksumEnd)
	g.Expect(decodeBackup(later)).To(Equal(b), "a field of a later version")
}

func TestListBackupsTellsBackupsFromGarbage(t *testing.T) {
	g := NewWithT(t)
	store := NewMemory(testNow)
	id := func(i int) string { return fmt.Sprintf("2026113%dT154501Z-aa", i) }
	good := func(i int) *Backup { return &Backup{ID: id(i), Cluster: "orders"} }
	put(t, store, testCluster+"/wal/00000001/x.zst", []byte("x"))
	put(t, store, BackupDir(testCluster, "20261129T154501Z-bb")+"/base.001.tar.zst", []byte("part"))
	putBackup(t, store, &Backup{ID: "20261128T154501Z-aa"})
	putBackup(t, store, good(0))
	putBackup(t, store, &Backup{ID: "20261127T154501Z-aa"})
	key := path.Join(BackupDir(testCluster, "20261127T154501Z-aa"), CommitMark)
	store.Change(key, func(c []byte) []byte { return c[:len(c)/2] })
	put(t, store, path.Join(testCluster, "base", "foreign", CommitMark), []byte("{}"))

	c, err := ListBackups(t.Context(), store, testCluster)
	g.Expect(err).NotTo(HaveOccurred())
	ids := func(u []Unfinished) (out []string) {
		for _, x := range u {
			out = append(out, x.ID)
		}
		return out
	}
	g.Expect(c.Backups).To(HaveExactElements(HaveField("ID", "20261128T154501Z-aa"), HaveField("ID", id(0))))
	g.Expect(ids(c.Garbage)).To(Equal([]string{"20261129T154501Z-bb"}))
	g.Expect(c.Garbage[0]).To(And(HaveField("Size", int64(4)), HaveField("Modified", testNow()), HaveField("Keys", HaveLen(1))))
	g.Expect(ids(c.Damaged)).To(Equal([]string{"20261127T154501Z-aa", "foreign"}))

	broken := errors.New("connection refused")
	for _, call := range []string{"List", "Read"} {
		store.OnCall(func(c, _ string) error {
			if c == call {
				return broken
			}
			return nil
		})
		_, err := ListBackups(t.Context(), store, testCluster)
		g.Expect(err).To(MatchError(broken), "%s fails: the catalogue is unknown, not empty", call)
	}
}
