package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// probeEvery is how often a step looks whether it is done.
	probeEvery = 50 * time.Millisecond
	// sayEvery is how often a long step says what it waits for.
	sayEvery = 5 * time.Second
)

// printer writes progress. A terminal that has gone away does not stop
// anything.
type printer struct {
	mu    sync.Mutex
	out   io.Writer
	begin time.Time
}

func newPrinter(out io.Writer) *printer { return &printer{out: out, begin: time.Now()} }

func (p *printer) elapsed() time.Duration { return time.Since(p.begin) }

func (p *printer) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *printer) step(name string, took time.Duration, result string) {
	p.line("  %-11s %6.1f s  %s", name, took.Seconds(), result)
}

// permanent wraps an error after which waiting on is useless.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// waitFor calls probe until it returns nil. It says every few seconds what it
// still waits for, and gives up after limit or at a permanent error.
func (p *printer) waitFor(ctx context.Context, what string, limit time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	next := time.Now().Add(sayEvery)
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		var final permanent
		if errors.As(err, &final) {
			return final.error
		}
		if time.Now().After(next) {
			p.line("  %-11s … %v", what, err)
			next = time.Now().Add(sayEvery)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready within %s: %w", limit, err)
		case <-time.After(probeEvery):
		}
	}
}

// getOK succeeds when url answers 200.
func getOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}
