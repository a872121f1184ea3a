// Package certificate serves TLS with a certificate in files, which it reads again when they change.
package certificate

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// every is how often the files of the certificate are looked at.
const every = time.Second

// Pair is a certificate and its key. Its methods may be called from several goroutines at once.
type Pair struct {
	cert, key string
	log       hclog.Logger
	current   atomic.Pointer[tls.Certificate]
	failures  atomic.Uint64

	mu sync.Mutex
	// tried is the state of the files when they were read last; guarded by mu.
	tried fileStates
}

// fileStates are what changes with the content of the certificate's and the key's file.
type fileStates [2]fileState

type fileState struct {
	changedAt time.Time
	size      int64
	err       string
}

// New returns the pair in two PEM files, of which cert has also the certificates that lead to the CA.
// Load has to be called before it is used.
func New(cert, key string, log hclog.Logger) *Pair { return &Pair{cert: cert, key: key, log: log} }

// Current returns the certificate in use, nil before the first Load.
func (c *Pair) Current() *tls.Certificate { return c.current.Load() }

// Failures is how many changes of the files could not be used.
func (c *Pair) Failures() uint64 { return c.failures.Load() }

// Get is for tls.Config.
func (c *Pair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

// Load reads the files. After an error the last certificate stays in use.
func (c *Pair) Load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = c.state() // before the files are read: a later change is seen
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("certificate %s and key %s: %w", c.cert, c.key, err)
	}
	c.current.Store(&pair)
	return nil
}

// Reload is Load for a program that runs.
func (c *Pair) Reload() error {
	if err := c.Load(); err != nil {
		c.failures.Add(1)
		return fmt.Errorf("cannot use the new certificate: the last one stays in use: %w", err)
	}
	c.log.Info("using the certificate that was read again", "cert", c.cert, "expires", c.current.Load().Leaf.NotAfter)
	return nil
}

// Watch reads changed files again until ctx ends. A change counts when the files have not changed
// for a moment: certificate and key are seldom replaced at once.
func (c *Pair) Watch(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := c.state()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := c.state()
		if settled := now == last; settled && now != c.lastTried() {
			if err := c.Reload(); err != nil { // once for each change
				c.log.Error(err.Error())
			}
		}
		last = now
	}
}

func (c *Pair) lastTried() fileStates {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tried
}

func (c *Pair) state() (out fileStates) {
	for i, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			out[i].err = err.Error()
			continue
		}
		out[i].changedAt, out[i].size = info.ModTime(), info.Size()
	}
	return out
}
