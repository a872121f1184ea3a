package nvml

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoDriver is wrapped by errors that say that the driver is not loaded.
var ErrNoDriver = errors.New("no NVIDIA driver")

// maxMessage bounds a message. A GPU with all its NVLinks and MIG instances needs a fiftieth of it.
const maxMessage = 1 << 20

// killWait is how long a worker that has ended is waited for what it still had
// to print. One that hangs inside the kernel ends only when the driver returns.
const killWait = time.Second

// self is the file of this program, as it was called at its start. An upgrade may
// replace it by another version at any time, so a worker that is this program is
// started from what runs and not from the file.
var self, _ = os.Executable()

// process is a running worker. It is safe for concurrent use.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	record  *Record
	onEvent func(Event)
	// first is where the reply to the start will be.
	first chan Message
	// gone is closed when the process has been reaped.
	gone  chan struct{}
	noise *tail

	// waited says that the worker has reported whether it can wait for XIDs, and eventsErr why it
	// cannot. The source's mu guards both.
	waited    bool
	eventsErr error

	mu      sync.Mutex
	last    uint64 // the last request's ID
	pending map[uint64]chan Message
	// crashed are the calls in which the process ended, and culprits the numbers of their GPUs in
	// the driver's list.
	crashed  []string
	culprits []int
}

// spawn starts a worker: of the node, or of the GPU with a bus ID. Its first reply is that to
// request 0. Every event is passed to onEvent, in a goroutine of the process.
func spawn(command []string, gpu string, onEvent func(Event)) (*process, error) {
	replies, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the NVML worker: %w", err)
	}
	defer theirs.Close()
	record, fd, err := newRecord()
	if err != nil {
		replies.Close()
		return nil, err
	}
	page := os.NewFile(uintptr(fd), "record")
	defer page.Close()
	if gpu != "" {
		command = append(append([]string(nil), command...), "-nvml-gpu", gpu)
	}
	p := &process{
		cmd:     exec.Command(command[0], command[1:]...),
		record:  record,
		onEvent: onEvent,
		first:   make(chan Message, 1),
		gone:    make(chan struct{}),
		noise:   &tail{},
	}
	p.pending = map[uint64]chan Message{0: p.first}
	if command[0] == self {
		p.cmd.Path = "/proc/self/exe"
	}
	// A worker does one thing at a time. Threads that are inside NVML do not count.
	p.cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	p.cmd.ExtraFiles = []*os.File{theirs, page} // WorkerFD, RecordFD
	p.cmd.Stdout, p.cmd.Stderr = p.noise, p.noise
	// A library may start processes that keep the pipes open.
	p.cmd.WaitDelay = killWait
	p.stdin, err = p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		replies.Close()
		record.close()
		return nil, fmt.Errorf("start the NVML worker: %w", err)
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		_ = p.cmd.Wait() // ending says how it went
		// Its last words are in the pipe. A program that its libraries started
		// may hold the other end open for long.
		_ = replies.SetReadDeadline(time.Now().Add(killWait))
	}()
	go p.read(replies, reaped)
	return p, nil
}

// read passes on what the worker sends, until it is gone.
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
		if m.Event != nil {
			p.onEvent(*m.Event)
			continue
		}
		p.mu.Lock()
		answer, asked := p.pending[m.ID]
		delete(p.pending, m.ID)
		p.mu.Unlock()
		if !asked {
			fmt.Fprintf(p.noise, "a reply to request %d, which is unknown", m.ID)
			break
		}
		answer <- m
	}
	_ = p.cmd.Process.Kill() // it has closed its replies, so it is of no more use
	<-reaped
	replies.Close()
	p.mu.Lock()
	for slot := range 1 + MaxGPUs {
		if symbol, _ := p.record.Call(slot); symbol != "" {
			p.crashed = append(p.crashed, at(slot, symbol))
			if slot > 0 {
				p.culprits = append(p.culprits, slot-1)
			}
		}
	}
	p.record.close()
	p.record = nil
	p.mu.Unlock()
	close(p.gone)
}

// at names a call.
func at(slot int, symbol string) string {
	if slot == 0 {
		return symbol
	}
	return fmt.Sprintf("%s of GPU %d", symbol, slot-1)
}

// ask sends a request and returns where its reply will be.
func (p *process) ask(op string, index int) <-chan Message {
	answer := make(chan Message, 1)
	p.mu.Lock()
	p.last++
	id := p.last
	p.pending[id] = answer
	p.mu.Unlock()
	line, err := json.Marshal(Request{ID: id, Op: op, Index: index})
	if err == nil {
		_, _ = p.stdin.Write(append(line, '\n')) // if it cannot be asked it is about to be gone, and that says why
	}
	return answer
}

// call is the call that a slot's work is in, and for how long.
func (p *process) call(slot int) (string, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.record == nil {
		return "", 0
	}
	return p.record.Call(slot)
}

// ending says how a process that is gone ended, and in which call of NVML.
func (p *process) ending() error {
	where := ""
	if len(p.crashed) > 0 {
		where = " in " + strings.Join(p.crashed, " or ")
	}
	text, crash := p.noise.said()
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if crash != "" {
		return faultOf(causeCrash, "NVML crashes%s: %s", where, crash)
	}
	if status.Signaled() && text == "" {
		return faultOf(causeCrash, "the NVML worker was ended%s by signal %d (%s)", where, status.Signal(), status.Signal())
	}
	if text == "" {
		text = p.cmd.ProcessState.String()
	}
	return faultOf(causeCrash, "the NVML worker ended%s: %s", where, text)
}

// replyError is the error of a reply.
func replyError(m Message) error {
	switch {
	case m.Err == "":
		return nil
	case m.NoDriver:
		return fmt.Errorf("%s%w", m.Err, hidden{ErrNoDriver})
	}
	return errors.New(m.Err)
}

// kill ends the process and waits a little for it to be gone. It reports whether it is.
func (p *process) kill() bool {
	_ = p.cmd.Process.Kill()
	select {
	case <-p.gone:
		return true
	case <-time.After(3 * killWait): // a child of it may hold its output, and its replies, for killWait each
		return false
	}
}

// tail keeps the end of what a process printed, or the line in which Go's runtime names the signal or
// the fault by which it ends. The stacks behind that line are dropped.
type tail struct {
	mu    sync.Mutex
	b     []byte
	crash string
}

const tailBytes = 1 << 10

var crashLine = regexp.MustCompile(`(?m)^(SIG[A-Z]+: .*|fatal error: .*|panic: .*)\n`)

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.crash != "" {
		return len(p), nil
	}
	t.b = append(t.b, p...)
	if line := crashLine.FindSubmatch(t.b); line != nil {
		t.crash = onOneLine(line[1])
	}
	if over := len(t.b) - tailBytes; over > 0 {
		t.b = t.b[over:]
	}
	return len(p), nil
}

// said is the end of the output on one line, and the line of a crash.
func (t *tail) said() (text, crash string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return onOneLine(t.b), t.crash
}

// onOneLine makes valid UTF-8 of what was printed, whatever it was and wherever it was cut.
func onOneLine(b []byte) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "?")), " ")
}
