package pgsql_test

import "runtime"

// lockThread keeps the calling goroutine on its thread for good.
func lockThread() { runtime.LockOSThread() }
