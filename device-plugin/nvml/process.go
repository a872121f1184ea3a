package nvml

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// ErrNoDriver is wrapped by errors that say that the driver is not loaded.
var ErrNoDriver = errors.New("no NVIDIA driver")

// maxMessage bounds a message. A node with 16 GPUs and all their NVLinks needs
// a tenth of it.
const maxMessage = 1 << 20

// killWait is how long a worker that has ended is waited for what it still had
// to say. One that hangs inside the kernel ends only when the driver returns.
const killWait = time.Second

// self is the file of this program, as it was called at its start. An upgrade may
// replace it by another version at any time, so a worker that is this program is
// started from what runs and not from the file.
var self, _ = os.Executable()

// process is a running worker. It is safe for concurrent use.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// token holds one value while nobody asks; requests go one at a time.
	token chan struct{}
	// replies are the answers to requests, and the word that it is ready.
	replies chan Message
	onEvent func(Event)
	// gone is closed when the process has been reaped.
	gone  chan struct{}
	noise *tail

	mu    sync.Mutex
	last  uint64 // the last request's ID
	stuck string // the function that does not return
}

// spawn starts a worker. Every event is passed to onEvent, in a goroutine of
// the process. Nothing may be asked before ready.
func spawn(command []string, onEvent func(Event)) (*process, error) {
	replies, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the NVML worker: %w", err)
	}
	p := &process{
		cmd:     exec.Command(command[0], command[1:]...),
		token:   make(chan struct{}, 1),
		replies: make(chan Message),
		onEvent: onEvent,
		gone:    make(chan struct{}),
		noise:   &tail{},
	}
	if command[0] == self {
		p.cmd.Path = "/proc/self/exe"
	}
	p.cmd.ExtraFiles = []*os.File{theirs} // WorkerFD
	p.cmd.Stdout, p.cmd.Stderr = p.noise, p.noise
	// A library may start processes that keep the pipes open.
	p.cmd.WaitDelay = killWait
	stdin, err := p.cmd.StdinPipe()
	if err == nil {
		p.stdin = stdin
		err = p.cmd.Start()
	}
	theirs.Close()
	if err != nil {
		replies.Close()
		return nil, fmt.Errorf("start the NVML worker: %w", err)
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		_ = p.cmd.Wait() // the way it ended is told by what it printed
		// Its last words are in the pipe. A program that its libraries started
		// may hold the other end open for long.
		_ = replies.SetReadDeadline(time.Now().Add(killWait))
	}()
	go p.read(replies, reaped)
	return p, nil
}

// ready waits until the worker has initialised NVML and can be asked. After an
// error it can only be killed.
func (p *process) ready(ctx context.Context) error {
	first, err := p.await(ctx)
	if err == nil && !first.Ready {
		err = replyError(first)
	}
	if err == nil {
		p.token <- struct{}{}
	}
	return err
}

// read passes on what the worker says, until it is gone.
func (p *process) read(replies *os.File, reaped <-chan struct{}) {
	lines := bufio.NewReaderSize(replies, maxMessage)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			fmt.Fprintf(p.noise, "a message of more than %d bytes", maxMessage)
		}
		if err != nil {
			break
		}
		var m Message
		if err := json.Unmarshal(line, &m); err != nil {
			fmt.Fprintf(p.noise, "unreadable message: %v", err)
			break
		}
		switch {
		case m.Event != nil:
			p.onEvent(*m.Event)
		case m.Stuck != "":
			p.mu.Lock()
			p.stuck = m.Stuck
			p.mu.Unlock()
		default:
			// Nobody may be waiting: then the process is being ended.
			select {
			case p.replies <- m:
			case <-time.After(killWait):
			}
		}
	}
	_ = p.cmd.Process.Kill() // it has closed its replies, so it is of no more use
	<-reaped
	replies.Close()
	close(p.gone)
}

// await waits for the next reply.
func (p *process) await(ctx context.Context) (Message, error) {
	select {
	case m := <-p.replies:
		return m, nil
	case <-p.gone:
		if said := p.noise.String(); said != "" {
			return Message{}, fmt.Errorf("the NVML worker ended: %s", said)
		}
		return Message{}, fmt.Errorf("the NVML worker ended: %s", p.cmd.ProcessState)
	case <-ctx.Done():
		return Message{}, fmt.Errorf("NVML %s: %w", p.doing(), ctx.Err())
	}
}

// doing says what keeps the worker from answering.
func (p *process) doing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck != "" {
		return "hangs in " + p.stuck
	}
	return "does not answer"
}

func replyError(m Message) error {
	if m.NoDriver {
		return fmt.Errorf("%w: %s", ErrNoDriver, m.Err)
	}
	return errors.New(m.Err)
}

// ask sends a request and waits for its reply. After an error for which
// unusable returns true the process can only be killed.
func (p *process) ask(ctx context.Context, op string) (m Message, unusable bool, err error) {
	select {
	case <-p.token:
	case <-ctx.Done():
		return Message{}, false, fmt.Errorf("wait for NVML: %w", ctx.Err())
	case <-p.gone:
		m, err := p.await(ctx)
		return m, true, err
	}
	defer func() {
		if !unusable {
			p.token <- struct{}{}
		}
	}()
	p.mu.Lock()
	p.last++
	id := p.last
	p.stuck = ""
	p.mu.Unlock()
	line, err := json.Marshal(Request{ID: id, Op: op})
	if err != nil {
		return Message{}, false, err
	}
	_, _ = p.stdin.Write(append(line, '\n')) // if it cannot be asked it is about to be gone, and that says why
	m, err = p.await(ctx)
	switch {
	case err != nil:
		return Message{}, true, err
	case m.ID != id:
		return Message{}, true, fmt.Errorf("the NVML worker answered request %d instead of %d: %s", m.ID, id, m.Err)
	case m.Err != "":
		return Message{}, m.Fatal, replyError(m)
	case op == OpLook && m.Look == nil:
		return Message{}, true, errors.New("the NVML worker answered without a look")
	}
	return m, false, nil
}

// kill ends the process and waits a little for it to be gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	select {
	case <-p.gone:
	case <-time.After(3 * killWait): // a child of it may hold its output, and its replies, for killWait each
	}
}

// alive says whether the process has not been reaped.
func (p *process) alive() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// tail keeps the end of what a process printed.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 1 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = t.b[over:]
	}
	return len(p), nil
}

// String is the end of the output on one line, in valid UTF-8 whatever was
// printed and wherever it was cut.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(t.b), "?")), " ")
}
