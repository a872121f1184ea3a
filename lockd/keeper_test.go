package lockd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	lockclient "remuda/lockd/client"
	"remuda/lockd/cohort"
	"remuda/lockd/wire"
)

// keeperSettings are what a keeper is told: a process that takes a lock with the
// real client and behaves as an engine does.
type keeperSettings struct {
	Addr, Group, Holder string
	// Page is the file of a page that it marks while it holds the lock; may be
	// empty.
	Page string
	// WakeFails makes it end itself as soon as it has the lock.
	WakeFails bool
	// SessionTTL is for TCP.
	SessionTTL time.Duration
}

// runKeeper ends when the lock is lost.
func runKeeper(raw string) error {
	var set keeperSettings
	if err := json.Unmarshal([]byte(raw), &set); err != nil {
		return err
	}
	go func() { // it does not outlive the tests
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	cfg := lockclient.DefaultConfig()
	cfg.Addr, cfg.Group, cfg.Holder = set.Addr, set.Group, set.Holder
	if set.SessionTTL != 0 {
		cfg.SessionTTL = set.SessionTTL
	}
	cfg.OnWaiting = func(position int) { say(wire.Event{Event: wire.Waiting, Position: position}) }
	c, err := lockclient.New(cfg)
	if err != nil {
		return err
	}
	grant, err := c.Acquire(context.Background())
	if err != nil {
		return err
	}
	say(wire.Event{Event: wire.Granted, Token: grant.Token()})
	if set.WakeFails {
		return errors.New("the wake fails")
	}
	if set.Page != "" {
		p, err := openPage(set.Page)
		if err != nil {
			return err
		}
		for grant.Err() == nil {
			p.mark(grant.Token())
			time.Sleep(100 * time.Microsecond) // the work of a holder
		}
	}
	<-grant.Lost()
	fmt.Printf("{\"event\":\"lost\",\"error\":%q}\n", grant.Err().Error())
	return grant.Err()
}

func say(e wire.Event) {
	line, err := wire.EncodeEvent(e)
	if err != nil {
		exit(err)
	}
	_, _ = os.Stdout.Write(line)
}

// newKeeper starts a keeper on lockd's Unix socket, unless set has an address.
func (d *daemon) newKeeper(group, holder string, set keeperSettings) *client {
	d.t.Helper()
	set.Group, set.Holder = group, holder
	if set.Addr == "" {
		set.Addr = d.cfg.Socket
	}
	raw, err := json.Marshal(set)
	require.NoError(d.t, err)
	cmd := exec.Command(self(d.t), "test-keeper", string(raw))
	cmd.Env = append(os.Environ(), cohort.EnvVar+"="+newCohort())
	c := &client{t: d.t, cmd: cmd}
	c.start()
	return c
}

// page is shared by holders as a witness: each marks it with its token, over and
// over, and so meets a newer one's mark if both believe to hold the lock.
type page struct{ words []byte }

const pageSize = 4096

func newPage(t testing.TB) (*page, string) {
	t.Helper()
	path := filepath.Join(shortDir(t), "page")
	require.NoError(t, os.WriteFile(path, make([]byte, pageSize), 0o600))
	p, err := openPage(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Munmap(p.words) })
	return p, path
}

func openPage(path string) (*page, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	words, err := syscall.Mmap(int(f.Fd()), 0, pageSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return &page{words}, err
}

func (p *page) word(i uint64) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.words[8*i])) }

// newest is the newest token that marked, overlaps counts the marks after that of
// a newer token, and marks counts those of one token.
func (p *page) newest() *atomic.Uint64            { return p.word(0) }
func (p *page) overlaps() *atomic.Uint64          { return p.word(1) }
func (p *page) marks(token uint64) *atomic.Uint64 { return p.word(2 + token) }

func (p *page) mark(token uint64) {
	for {
		old := p.newest().Load()
		if old > token {
			p.overlaps().Add(1)
			break
		}
		if p.newest().CompareAndSwap(old, token) {
			break
		}
	}
	p.marks(token).Add(1)
}

// awaitMarks waits until the token has marked n times more.
func (p *page) awaitMarks(t testing.TB, token, n uint64) {
	t.Helper()
	want := p.marks(token).Load() + n
	require.Eventually(t, func() bool { return p.marks(token).Load() >= want }, patience, time.Millisecond, "token %d does not work", token)
}
