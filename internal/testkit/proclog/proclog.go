// Package proclog collects what a process prints or a program logs while others read it, for tests.
package proclog

import (
	"bytes"
	"sync"

	"github.com/hashicorp/go-hclog"
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

// Logger returns a logger that writes to b.
func (b *Buffer) Logger() hclog.Logger { return hclog.New(&hclog.LoggerOptions{Output: b}) }
