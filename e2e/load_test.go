//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load is clients that stream answer after answer and compare each with the text that the
// simulated engine must give.
type load struct {
	t      testing.TB
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ok     atomic.Int64
	mu     sync.Mutex
	// failed are requests that were refused or broke off, wrong are answers with another text.
	failed, wrong []string
	// makers are the engines of answers, by the process IDs that they stamp them with.
	makers map[string]bool
}

// startLoad starts clients that ask a model for answers of so many tokens. url gives the
// address to ask, anew for each request. It ends with the test.
func startLoad(t testing.TB, model string, clients, tokens int, url func() (string, error)) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, cancel: cancel, makers: map[string]bool{}}
	for c := range clients {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				prompt := fmt.Sprintf("client %d request %d", c, i)
				at, err := url()
				if err == nil {
					// A request is always read to its end.
					err = l.ask(at, model, prompt, tokens)
				}
				if err != nil {
					l.note(&l.failed, "%s: %v", prompt, err)
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l
}

func (l *load) ask(url, model, prompt string, tokens int) error {
	got, err := streamChat(context.Background(), url, model, prompt, tokens)
	l.mu.Lock()
	for _, maker := range got.makers {
		l.makers[maker] = true
	}
	l.mu.Unlock()
	if len(got.makers) > 1 {
		l.note(&l.wrong, "%s: processes %q have made it", prompt, got.makers)
	}
	if err != nil {
		return err
	}
	if want := exact(model, prompt, tokens).Text; got.text != want {
		l.note(&l.wrong, "%s: got %q, want %q", prompt, got.text, want)
		return nil
	}
	l.ok.Add(1)
	return nil
}

func (l *load) note(list *[]string, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*list = append(*list, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// flows waits until more answers have come.
func (l *load) flows(more int64) {
	l.t.Helper()
	for want, got := l.ok.Load()+more, l.ok.Load(); got < want; {
		before := got
		eventually(l.t, 2*time.Minute, "another answer", func() error {
			if got = l.ok.Load(); got == before {
				l.mu.Lock()
				defer l.mu.Unlock()
				return fmt.Errorf("%d of %d; failed: %q", got, want, last(l.failed, 3))
			}
			return nil
		})
	}
}

// during lets the load run for a while, and requires that answers came meanwhile.
func (l *load) during(d time.Duration) {
	l.t.Helper()
	begin := l.ok.Load()
	time.Sleep(d)
	l.flows(1)
	l.t.Logf("%d answers in %s", l.ok.Load()-begin, d)
}

func last(list []string, n int) []string { return list[max(0, len(list)-n):] }

// end ends the load. It requires that some answers came and that none was wrong, and returns
// how many came and how many requests failed.
func (l *load) end() (served, failed int64) {
	l.t.Helper()
	l.cancel()
	l.wg.Wait()
	l.t.Logf("%d answers, %d requests failed", l.ok.Load(), len(l.failed))
	require.Empty(l.t, l.wrong)
	require.NotZero(l.t, l.ok.Load())
	return l.ok.Load(), int64(len(l.failed))
}

// none ends the load and requires that no request has failed.
func (l *load) none() {
	l.t.Helper()
	l.end()
	require.Empty(l.t, l.failed)
}

// load starts clients that ask through the cluster's first gateway.
func (d *dev) load(model string, clients, tokens int) *load {
	return startLoad(d.t, model, clients, tokens, d.gatewayURL)
}

func (d *dev) gatewayURL() (string, error) { return d.info.Gateway, nil }
