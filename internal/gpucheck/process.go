package gpucheck

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// process is one that this run started, in a group of its own. The kernel kills
// it should this program die.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// stdout is what it answers; nil where that goes to the log.
	stdout *bufio.Reader
	pipes  []*os.File
	// ended is closed when the process has been waited for; endErr is set then.
	ended  chan struct{}
	endErr error
	log    *logbook
}

// logLine is a line of a log.
type logLine struct {
	arrived time.Time
	// at is when it was written as it says itself, to a millisecond, or else when
	// it arrived.
	at   time.Time
	text string
}

// stamp reads the time in front of a line of hclog's.
func stamp(text string, arrived time.Time) time.Time {
	first, _, _ := strings.Cut(text, " ")
	if at, err := time.Parse(hclog.TimeFormat, first); err == nil {
		return at
	}
	return arrived
}

// logbook has what a process, and those it started, wrote to standard error.
type logbook struct {
	reading sync.WaitGroup
	mu      sync.Mutex // guards lines
	lines   []logLine
}

// read follows the log until everybody has closed it, or from is closed.
func (l *logbook) read(from io.Reader, to io.Writer) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		now := time.Now()
		fmt.Fprintln(to, lines.Text())
		l.mu.Lock()
		l.lines = append(l.lines, logLine{now, stamp(lines.Text(), now), lines.Text()})
		l.mu.Unlock()
	}
}

// await waits for the first line that came since then and has the text: it may be
// on its way.
func (l *logbook) await(ctx context.Context, since time.Time, text string) (line logLine, err error) {
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	err = await(ctx, func(context.Context) error {
		var ok bool
		if line, ok = l.find(since, text); !ok {
			return fmt.Errorf("no line of the log says %q", text)
		}
		return nil
	})
	return line, err
}

// logTime is how long a line may be on its way.
const logTime = 2 * time.Second

func (l *logbook) find(since time.Time, text string) (logLine, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !line.arrived.Before(since) && strings.Contains(line.text, text) {
			return line, true
		}
	}
	return logLine{}, false
}

// last is the end of the log, for messages.
func (l *logbook) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return "it wrote nothing"
	}
	return l.lines[len(l.lines)-1].text
}

// start starts a program. talk keeps its standard input and output for a
// conversation; else the output goes to the log.
func (r *run) start(name string, talk bool, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), ended: make(chan struct{}), log: &logbook{}}
	p.cmd.Env = append(os.Environ(), markEnv+"="+r.mark)
	p.cmd.Dir = r.dir
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	logFile, err := os.OpenFile(filepath.Join(r.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	// Pipes of our own: what a process leaves behind may hold them open, and
	// nobody waits for that.
	out, errs, err := p.connect(talk)
	if err == nil {
		err = p.launch()
	}
	for _, f := range []*os.File{out, errs} {
		if f != nil {
			f.Close()
		}
	}
	if err != nil {
		logFile.Close()
		p.closePipes()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.log.reading.Go(func() {
		defer logFile.Close()
		p.log.read(p.pipes[0], logFile)
	})
	r.mu.Lock()
	r.processes = append(r.processes, p)
	r.mu.Unlock()
	return p, nil
}

// connect makes the pipes and returns the ends that the process gets.
func (p *process) connect(talk bool) (out, errs *os.File, err error) {
	theirs := make([]*os.File, 0, 2)
	n := 1
	if talk {
		n = 2
	}
	for range n {
		ours, its, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		p.pipes = append(p.pipes, ours)
		theirs = append(theirs, its)
	}
	errs = theirs[0]
	p.cmd.Stderr, p.cmd.Stdout = errs, errs
	if !talk {
		return nil, errs, nil
	}
	out = theirs[1]
	p.cmd.Stdout, p.stdout = out, bufio.NewReader(p.pipes[1])
	p.stdin, err = p.cmd.StdinPipe()
	return out, errs, err
}

// launch starts the process on a thread that lives as long as it does: the
// kernel's parent-death signal is bound to the thread that forked.
func (p *process) launch() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.endErr = p.cmd.Wait()
		close(p.ended)
	}()
	return <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) closePipes() {
	for _, f := range p.pipes {
		f.Close()
	}
}

// alive is an error once the process has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		how := "exit status 0"
		if p.endErr != nil {
			how = p.endErr.Error()
		}
		return fmt.Errorf("%s %w (%s): %s", p.name, errEnded, how, p.log.last())
	default:
		return nil
	}
}

// kill ends the process with SIGKILL and returns once it is gone, which is when
// its memory may go.
func (p *process) kill(ctx context.Context) error {
	if err := unix.Kill(-p.pid(), unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	return p.await(ctx)
}

// await returns once the process has ended by itself.
func (p *process) await(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", p.name, ctx.Err())
	}
}

// stop asks a process to end, and kills it when it has not within grace.
func (p *process) stop(ctx context.Context, grace time.Duration) error {
	if err := unix.Kill(p.pid(), unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	polite, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.await(polite) == nil {
		return nil
	}
	return p.kill(ctx)
}

// endAll kills whatever this run has started, and notes what had to be killed
// beyond the processes that it knew of.
func (r *run) endAll(ctx context.Context) (err error) {
	r.mu.Lock()
	processes := r.processes
	r.processes = nil
	r.mu.Unlock()
	for _, p := range processes {
		err = errors.Join(err, p.kill(ctx))
	}
	defer func() {
		for _, p := range processes {
			p.closePipes()
			p.log.reading.Wait()
		}
	}()
	// The guard of a shim ends by itself once it has cleaned up.
	polite, cancel := context.WithTimeout(ctx, straysTime)
	defer cancel()
	if await(polite, func(context.Context) error { return r.noneLeft() }) == nil {
		return err
	}
	strays, lerr := marked(r.mark)
	for _, pid := range strays {
		r.strays = append(r.strays, fmt.Sprintf("%d (%s)", pid, commandLine(pid)))
		if kerr := unix.Kill(pid, unix.SIGKILL); !errors.Is(kerr, unix.ESRCH) {
			err = errors.Join(err, kerr)
		}
	}
	return errors.Join(err, lerr, await(ctx, func(context.Context) error { return r.noneLeft() }))
}

// commandLine is what a process was started with.
func commandLine(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
}

// straysTime is how long what the known processes have started may outlive them.
const straysTime = 5 * time.Second

func (r *run) noneLeft() error {
	pids, err := marked(r.mark)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("processes %v are left", pids)
	}
	return err
}
