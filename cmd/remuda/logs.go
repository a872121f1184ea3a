package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
)

var logs = apiCommand{
	synopsis: "Show the logs of a replica",
	about: `Shows what the tasks of a replica have written to standard output and standard error: the shim,
its engine, and tasks that run before them. Each line begins with its task if there are several, as
the primary and the shadow of a pair. Nomad has the logs: it is found by NOMAD_ADDR, NOMAD_TOKEN
and the other variables of "nomad alloc logs". A replica is given by its name, or by a unique prefix
of its name or ID; one that is gone by its whole name, while Nomad has its allocation.`,
	args: []string{"REPLICA"},
	raw:  true,
	setup: func(fs *flag.FlagSet) runFunc {
		var l replicaLogs
		var address string
		fs.BoolVar(&l.follow, "f", false, "follow the logs until Ctrl-C")
		fs.IntVar(&l.lines, "n", 100, "how many of the last lines of each log to show; 0: all that Nomad has")
		fs.StringVar(&l.task, "task", "", "only the logs of this `task`, such as primary or shadow")
		fs.BoolVar(&l.stdout, "stdout", false, "only standard output")
		fs.BoolVar(&l.stderr, "stderr", false, "only standard error")
		fs.StringVar(&address, "nomad", "", "`URL` of Nomad, such as that of a capacity pool (default: $NOMAD_ADDR, else http://127.0.0.1:4646)")
		return func(ctx context.Context, c *apiClient, args []string) error {
			if l.lines < 0 {
				return usagef("-n is %d: must be 0 or more", l.lines)
			}
			cfg := nomadapi.DefaultConfig()
			cfg.Address = cmp.Or(address, cfg.Address)
			var err error
			if l.nomad, err = nomadapi.NewClient(cfg); err != nil {
				return usagef("the client of Nomad: %v", err)
			}
			defer l.nomad.Close()
			name, gone := args[0], error(nil)
			if r, err := c.findReplica(ctx, args[0]); err == nil {
				name = r.Name
			} else if gone = err; !passingName(name) {
				return err
			}
			return l.show(ctx, c.out, name, gone)
		}
	},
}

// passingName reports whether an argument may be the whole name of a replica that is gone.
func passingName(arg string) bool { return strings.Count(arg, ":") >= 2 }

// replicaLogs are the options of logs.
type replicaLogs struct {
	nomad                  *nomadapi.Client
	follow, stdout, stderr bool
	lines                  int
	task                   string
}

// allocation finds the newest allocation of a replica's job, in whatever namespace it is.
func (l *replicaLogs) allocation(ctx context.Context, replica string) (*nomadapi.AllocationListStub, error) {
	q := (&nomadapi.QueryOptions{Filter: fmt.Sprintf("JobID == %q", replica), Namespace: nomadapi.AllNamespacesNamespace}).WithContext(ctx)
	found, _, err := l.nomad.Allocations().List(q)
	if err != nil {
		return nil, fmt.Errorf("list the allocations of job %s: %w", replica, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no allocation of job %s in the Nomad at %s: set -nomad or NOMAD_ADDR if another one runs it, and NOMAD_TOKEN if it has ACLs", replica, l.nomad.Address())
	}
	return slices.MaxFunc(found, func(a, b *nomadapi.AllocationListStub) int { return cmp.Compare(a.CreateTime, b.CreateTime) }), nil
}

// tasks lists the tasks of an allocation whose logs are shown, in the order in which they started.
func (l *replicaLogs) tasks(a *nomadapi.AllocationListStub) ([]string, error) {
	var all, started []string
	for name, state := range a.TaskStates {
		all = append(all, name)
		if !state.StartedAt.IsZero() {
			started = append(started, name)
		}
	}
	slices.Sort(all)
	slices.SortFunc(started, func(x, y string) int {
		return cmp.Or(a.TaskStates[x].StartedAt.Compare(a.TaskStates[y].StartedAt), cmp.Compare(x, y))
	})
	switch {
	case l.task != "" && !slices.Contains(all, l.task):
		return nil, fmt.Errorf("no task %q%s: the tasks of %s are %s", l.task, didYouMean(l.task, all), a.JobID, strings.Join(all, ", "))
	case l.task != "":
		return []string{l.task}, nil
	case len(started) == 0:
		return nil, fmt.Errorf("no task of %s has started: %s", a.JobID, cmp.Or(a.ClientDescription, a.ClientStatus))
	}
	return started, nil
}

// show prints the logs of a replica. gone is why the controller has no such replica.
func (l *replicaLogs) show(ctx context.Context, out io.Writer, replica string, gone error) error {
	a, err := l.allocation(ctx, replica)
	if err != nil {
		return errors.Join(gone, err)
	}
	tasks, err := l.tasks(a)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	widest := 0
	for _, task := range tasks {
		widest = max(widest, len(task))
	}
	var mu sync.Mutex // of out
	var wg sync.WaitGroup
	var errs []error
	for _, task := range tasks {
		prefix := ""
		if len(tasks) > 1 {
			prefix = fmt.Sprintf("%-*s | ", widest, task)
		}
		for _, kind := range l.kinds() {
			one := func() {
				if err := l.copy(ctx, a, task, kind, func(lines []byte) error {
					mu.Lock()
					defer mu.Unlock()
					return write(out, prefix, lines)
				}); err != nil && ctx.Err() == nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s of task %s: %w", kind, task, err))
				}
			}
			if l.follow {
				wg.Go(one)
			} else {
				one()
			}
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// kinds are the logs of each task.
func (l *replicaLogs) kinds() []string {
	switch {
	case l.stdout && !l.stderr:
		return []string{nomadapi.FSLogNameStdout}
	case l.stderr && !l.stdout:
		return []string{nomadapi.FSLogNameStderr}
	}
	return []string{nomadapi.FSLogNameStdout, nomadapi.FSLogNameStderr}
}

// write prints whole lines, each with the prefix.
func write(out io.Writer, prefix string, lines []byte) error {
	for line := range bytes.Lines(lines) {
		if _, err := fmt.Fprintf(out, "%s%s\n", prefix, bytes.TrimRight(line, "\r\n")); err != nil {
			return err
		}
	}
	return nil
}

const (
	// lineBytes is how long a line of a log may be on average, so that the last ones are found.
	lineBytes = 500
	// settle is how long nothing comes after the end of what a log had at the start.
	settle = 500 * time.Millisecond
)

// copy passes the whole lines of a log to put: the last lines that were asked for, and with -f those
// that follow.
func (l *replicaLogs) copy(ctx context.Context, a *nomadapi.AllocationListStub, task, kind string, put func(lines []byte) error) error {
	origin, offset := nomadapi.OriginStart, int64(0)
	if l.lines > 0 {
		origin, offset = nomadapi.OriginEnd, int64(l.lines)*lineBytes
	}
	alloc := &nomadapi.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace}
	cancel := make(chan struct{})
	q := (&nomadapi.QueryOptions{Namespace: a.Namespace}).WithContext(ctx)
	frames, failed := l.nomad.AllocFS().Logs(alloc, l.follow, task, kind, origin, offset, cancel, q)
	defer close(cancel)
	tail := tailing{lines: l.lines, searched: int(offset), put: put}
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case f, more := <-frames:
			if !more {
				return tail.end()
			}
			if err := tail.add(f.Data); err != nil {
				return err
			}
			quiet.Reset(settle)
		case err := <-failed:
			return errors.Join(tail.end(), err)
		case <-quiet.C:
			if l.follow {
				if err := tail.live(); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return tail.end()
		}
	}
}

// tailing finds the last lines of a log, and passes on what follows them.
type tailing struct {
	lines    int // 0: all
	searched int // bytes before the end with which the log began
	put      func(lines []byte) error

	buffer []byte
	read   int
	isLive bool
}

func (t *tailing) add(data []byte) error {
	t.buffer = append(t.buffer, data...)
	t.read += len(data)
	if t.isLive || t.lines == 0 {
		return t.flush()
	}
	if t.read >= t.searched {
		return t.live()
	}
	return nil
}

// live: what was there at the start has been read.
func (t *tailing) live() error {
	if t.isLive {
		return nil
	}
	t.isLive = true
	t.cut()
	return t.flush()
}

// cut leaves the last lines.
func (t *tailing) cut() {
	if t.lines == 0 {
		return
	}
	if t.read >= t.searched { // the first line is most likely a part of one
		_, t.buffer, _ = bytes.Cut(t.buffer, []byte("\n"))
	}
	all := slices.Collect(bytes.Lines(t.buffer))
	t.buffer = bytes.Join(all[max(0, len(all)-t.lines):], nil)
}

// flush passes on the whole lines.
func (t *tailing) flush() error {
	n := bytes.LastIndexByte(t.buffer, '\n') + 1
	if n == 0 {
		return nil
	}
	lines := t.buffer[:n]
	t.buffer = bytes.Clone(t.buffer[n:])
	return t.put(lines)
}

// end passes on the rest.
func (t *tailing) end() error {
	if !t.isLive {
		t.cut()
	}
	rest := t.buffer
	t.buffer = nil
	if len(rest) == 0 {
		return nil
	}
	return t.put(rest)
}
