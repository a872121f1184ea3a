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
	// sayEvery is how often a long step prints what it does.
	sayEvery = 2 * time.Second
)

// printer writes progress. A terminal that has gone away does not stop
// anything.
type printer struct {
	out   io.Writer
	start time.Time
	// mu guards what follows, and out.
	mu sync.Mutex
	// running is the step that runs, began when it did so, and doing what it does at the moment.
	running string
	began   time.Time
	doing   string
}

func newPrinter(out io.Writer) *printer { return &printer{out: out, start: time.Now()} }

func (p *printer) elapsed() time.Duration { return time.Since(p.start) }

// now sets what the step that runs does at the moment.
func (p *printer) now(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = fmt.Sprintf(format, args...)
}

// note prints something that the step that runs has found out.
func (p *printer) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress(fmt.Sprintf(format, args...))
}

// progress needs mu.
func (p *printer) progress(text string) {
	fmt.Fprintf(p.out, "  %-11s … %4.0f s  %s\n", p.running, time.Since(p.began).Seconds(), text)
}

// begin prints every sayEvery what the step does, until the function that it returns is called.
func (p *printer) begin(step string) (end func()) {
	p.mu.Lock()
	p.running, p.began, p.doing = step, time.Now(), ""
	p.mu.Unlock()
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(sayEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				p.mu.Lock()
				p.progress(p.doing)
				p.mu.Unlock()
			}
		}
	}()
	return func() {
		close(ended)
		<-stopped
	}
}

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

// waitFor calls probe until it returns nil; meanwhile the probe's error is what the step does. It gives up
// after limit or at a permanent error.
func (p *printer) waitFor(ctx context.Context, limit time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		var final permanent
		if errors.As(err, &final) {
			return final.error
		}
		p.now("%v", err)
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
