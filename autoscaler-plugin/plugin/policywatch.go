package plugin

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
)

// Times of the watch for policies of model files.
const (
	// firstTimeout bounds the read before nomad-autoscaler loads its policies.
	firstTimeout = 5 * time.Second
	// retryAfter is the pause after an error.
	retryAfter = 5 * time.Second
	// reloadEvery is the least time between two reloads of nomad-autoscaler, which has every
	// policy look at its configuration.
	reloadEvery = 2 * time.Second
	// loadedAfter is how long nomad-autoscaler may take to start if it has no policy, which shows
	// that it has started. Before that it does not handle SIGHUP, which would end it.
	loadedAfter = 10 * time.Second
)

// policyWatch keeps the files of a policyDir those of the controller's model files, and has
// nomad-autoscaler reload when they change.
//
// It needs no state: each start writes the files anew before nomad-autoscaler reads them, so that a
// crash of either costs nothing. While the controller cannot be reached the files stay. A policy
// that is still loaded when the model file has another one does nothing: Target.Status compares.
type policyWatch struct {
	controller Controller
	dir        policyDir
	reload     func() error
	log        hclog.Logger
	// loaded are the files that nomad-autoscaler has read, or will read at its start.
	loaded []string
	index  uint64
	// started is closed when nomad-autoscaler has asked for a model: it handles signals.
	started   chan struct{}
	startOnce sync.Once
	stop      context.CancelFunc
	done      chan struct{}
}

// watchPolicies reads the policies once and then follows them in the background, until close.
func watchPolicies(c Controller, dir string, reload func() error, log hclog.Logger) (*policyWatch, error) {
	w := &policyWatch{controller: c, dir: policyDir(dir), reload: reload, log: log, started: make(chan struct{}), done: make(chan struct{})}
	var err error
	if w.loaded, err = w.dir.names(); err != nil {
		return nil, fmt.Errorf("policy_dir: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	first, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	if policies, meta, err := c.Policies(first, api.QueryOptions{}); err != nil {
		log.Warn("cannot read the policies of model files: those of the last start remain", "error", err)
	} else if w.loaded, err = w.dir.write(policies); err != nil {
		stop()
		return nil, fmt.Errorf("policy_dir: %w", err)
	} else {
		w.index = meta.Index
	}
	go w.run(ctx)
	return w, nil
}

// close ends the watch. The files stay.
func (w *policyWatch) close() {
	if w != nil {
		w.stop()
		<-w.done
	}
}

// asked notes that nomad-autoscaler evaluates policies.
func (w *policyWatch) asked() {
	if w != nil {
		w.startOnce.Do(func() { close(w.started) })
	}
}

func (w *policyWatch) run(ctx context.Context) {
	defer close(w.done)
	select {
	case <-w.started:
	case <-time.After(loadedAfter):
	case <-ctx.Done():
	}
	failing := false
	for ctx.Err() == nil {
		err := w.follow(ctx)
		pause := reloadEvery
		if err != nil {
			pause = retryAfter
			if !failing && ctx.Err() == nil {
				w.log.Warn("cannot follow the policies of model files: nomad-autoscaler goes on with those that it has", "error", err)
			}
		} else if failing {
			w.log.Info("the policies of model files can be followed again")
		}
		failing = err != nil
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// follow waits for a change and has nomad-autoscaler read it.
func (w *policyWatch) follow(ctx context.Context) error {
	policies, meta, err := w.controller.Policies(ctx, api.QueryOptions{Index: w.index})
	if err != nil {
		return err
	}
	names, err := w.dir.write(policies)
	if err != nil {
		return err
	}
	if !slices.Equal(names, w.loaded) {
		w.log.Info("the policies of model files have changed: nomad-autoscaler reloads", "policies", len(names))
		if err := w.reload(); err != nil {
			return fmt.Errorf("have nomad-autoscaler reload its policies: %w", err)
		}
		w.loaded = names
	}
	w.index = meta.Index
	return nil
}

// reloadParent sends SIGHUP to nomad-autoscaler, which is the parent of its plugins.
func reloadParent() func() error {
	parent := os.Getppid()
	return func() error {
		if now := os.Getppid(); now != parent {
			return fmt.Errorf("the parent process is %d, and was %d at the start: nomad-autoscaler has ended", now, parent)
		}
		return syscall.Kill(parent, syscall.SIGHUP)
	}
}
