package gateway

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

// certificateEvery is how often the files of the certificate are looked at.
const certificateEvery = time.Second

// certificates has the certificate of the clients' port and reads it again when its files change.
type certificates struct {
	files    TLS
	log      hclog.Logger
	current  atomic.Pointer[tls.Certificate]
	failures atomic.Uint64

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

func newCertificates(files TLS, log hclog.Logger) *certificates {
	return &certificates{files: files, log: log}
}

// get is for tls.Config.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

// load reads the files. After an error the last certificate stays in use.
func (c *certificates) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = c.state() // before the files are read: a later change is seen
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return fmt.Errorf("tls.cert %s and tls.key %s: %w", c.files.Cert, c.files.Key, err)
	}
	c.current.Store(&pair)
	return nil
}

// reload is load for a gateway that runs.
func (c *certificates) reload() error {
	if err := c.load(); err != nil {
		c.failures.Add(1)
		return fmt.Errorf("cannot use the new certificate: the last one stays in use: %w", err)
	}
	c.log.Info("using the certificate that was read again", "cert", c.files.Cert, "expires", c.current.Load().Leaf.NotAfter)
	return nil
}

// watch reads changed files again until ctx ends. A change counts when the files have not changed
// for a moment: certificate and key are seldom replaced at once.
func (c *certificates) watch(ctx context.Context) {
	tick := time.NewTicker(certificateEvery)
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
			if err := c.reload(); err != nil { // once for each change
				c.log.Error(err.Error())
			}
		}
		last = now
	}
}

func (c *certificates) lastTried() fileStates {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tried
}

func (c *certificates) state() (out fileStates) {
	for i, path := range []string{c.files.Cert, c.files.Key} {
		info, err := os.Stat(path)
		if err != nil {
			out[i].err = err.Error()
			continue
		}
		out[i].changedAt, out[i].size = info.ModTime(), info.Size()
	}
	return out
}
