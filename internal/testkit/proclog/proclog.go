// Package proclog collects what a process prints while others read it, for tests
// that run real processes.
package proclog

import (
	"bytes"
	"sync"
)

// Buffer takes what is written and gives all of it at any time. The zero Buffer
// is empty; its methods are safe for concurrent use.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
