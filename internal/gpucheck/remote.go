package gpucheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// remote is a client in a process of its own.
type remote struct{ *process }

// client starts a client of the service at a socket; "" for none.
func (r *run) client(name, socket string) (*remote, error) {
	cfg, err := json.Marshal(clientConfig{Backend: r.cfg.Backend, Library: r.cfg.CUDALibrary, GPU: r.gpu, Socket: socket})
	if err != nil {
		return nil, err
	}
	p, err := r.start(name, true, r.self, ClientVerb, string(cfg))
	return &remote{p}, err
}

// tell gives an order and waits for the answer.
func (c *remote) tell(ctx context.Context, o order) (answer, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return answer{}, err
	}
	type result struct {
		line []byte
		err  error
	}
	results := make(chan result, 1)
	go func() {
		if _, err := c.stdin.Write(append(raw, '\n')); err != nil {
			results <- result{err: err}
			return
		}
		line, err := c.stdout.ReadBytes('\n')
		results <- result{line, err}
	}()
	var a answer
	select {
	case <-ctx.Done():
		return a, fmt.Errorf("%s: %s: %w", c.name, o.Do, ctx.Err())
	case res := <-results:
		if err = res.err; err == nil {
			err = json.Unmarshal(res.line, &a)
		}
	}
	switch {
	case err != nil:
		// Its last words come a moment after the end of its output.
		select {
		case <-c.ended:
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return a, errors.Join(fmt.Errorf("%s: %s: %w", c.name, o.Do, err), c.alive())
	case a.Err != "":
		return a, fmt.Errorf("%s: %s: %s", c.name, o.Do, a.Err)
	}
	return a, nil
}
