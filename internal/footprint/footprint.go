// Package footprint keeps the memory of a long-running process small.
package footprint

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// When Settle works: once a process has done what it does only at the start, a while later, and from then on now and then, since
// pages that are used once in a while pile up.
var settleAfter = []time.Duration{15 * time.Second, time.Minute, 10 * time.Minute}

// Settle gives back what only the start needed: free heap, and the pages of the program file that package initialisation touched.
// They come back from the page cache when they are used again. It goes on until ctx ends; it is meant to run as a goroutine.
func Settle(ctx context.Context) {
	for i := 0; ; i++ {
		t := time.NewTimer(settleAfter[min(i, len(settleAfter)-1)])
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		debug.FreeOSMemory()
		_ = DropProgramPages()
	}
}

// DropProgramPages takes the read-only pages of the running program out of its resident set. They are backed by the file, so nothing
// is lost: https://man7.org/linux/man-pages/man2/madvise.2.html (MADV_DONTNEED).
func DropProgramPages() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer func() { _ = maps.Close() }()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[5] != exe || strings.Contains(f[1], "w") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil || to <= from {
			continue
		}
		region := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from))), to-from)
		if err := unix.Madvise(region, unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("give back pages of the program: %w", err)
		}
	}
	return lines.Err()
}
