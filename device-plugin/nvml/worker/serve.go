// Package worker is the process that talks to NVML, and the only part that
// links it (by cgo).
//
// NVML is a library that can end the process that uses it (a function that is
// missing), hang in it (a driver that hangs), crash it, and never be loaded
// twice (a driver that was exchanged needs another library). So it gets a
// process of its own: a worker, which lives for one initialisation of NVML and
// may be killed at any time. What is left is the plugin, which then reports
// its GPUs unhealthy and starts the next worker.
package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/nvml"
)

// stuckAfter is how long a call of NVML may take before the worker says so.
const stuckAfter = time.Second

// Main runs a worker on the library at path (empty: the linker's) until its
// standard input ends, and returns the exit status.
func Main(path string) int {
	var fd unix.Stat_t
	if err := unix.Fstat(nvml.WorkerFD, &fd); err != nil || fd.Mode&unix.S_IFMT != unix.S_IFIFO {
		fmt.Fprintln(os.Stderr, "the NVML worker is started by the plugin itself")
		return 2
	}
	// NVML starts programs (nvidia-modprobe), which have no business with it.
	unix.CloseOnExec(nvml.WorkerFD)
	out := os.NewFile(nvml.WorkerFD, "replies")
	w := &worker{out: json.NewEncoder(out)}
	return w.run(path, os.Stdin)
}

type worker struct {
	// mu guards out.
	mu  sync.Mutex
	out *json.Encoder

	// state guards reader and opening.
	state   sync.Mutex
	reader  *Reader
	opening string
}

// send writes a message. A plugin that is gone is seen on the standard input.
func (w *worker) send(m nvml.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(m)
}

func (w *worker) run(path string, in io.Reader) int {
	// The input is read in a goroutine of its own, so that a plugin that ends
	// takes its worker along even while NVML hangs.
	requests := make(chan nvml.Request)
	go func() {
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			var r nvml.Request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				fmt.Fprintln(os.Stderr, "bad request:", err)
				os.Exit(2)
			}
			requests <- r
		}
		os.Exit(0)
	}()
	go w.watchCalls()
	lib, have, err := open(path, func(symbol string) {
		w.state.Lock()
		defer w.state.Unlock()
		w.opening = symbol
	})
	if err != nil {
		w.send(failure(0, err))
		return 1
	}
	r := NewReader(lib, have)
	w.state.Lock()
	w.reader = r
	w.state.Unlock()
	w.send(nvml.Message{Ready: true})
	events := &events{send: w.send, settled: map[nv.Device]bool{}, uuids: map[nv.Device]string{}}
	for req := range requests {
		reply := nvml.Message{ID: req.ID}
		switch req.Op {
		case nvml.OpLook:
			reply.Look, err = r.Look()
			if err == nil {
				events.watch(r, reply.Look.Devices)
			}
		case nvml.OpLoad:
			reply.Load, err = r.Load()
		default:
			err = fmt.Errorf("unknown operation %q", req.Op)
		}
		if err != nil {
			reply = failure(req.ID, err)
		}
		w.send(reply)
		if reply.Fatal {
			return 1
		}
	}
	return 0
}

func failure(id uint64, err error) nvml.Message {
	return nvml.Message{ID: id, Err: err.Error(), Fatal: id == 0 || errors.Is(err, errReinit), NoDriver: errors.Is(err, errNoDriver)}
}

// watchCalls says when a call of NVML takes long, and which one.
func (w *worker) watchCalls() {
	last := ""
	for range time.Tick(stuckAfter) {
		w.state.Lock()
		now := w.opening
		if w.reader != nil {
			now = w.reader.Calling()
		}
		w.state.Unlock()
		if now != "" && now == last {
			w.send(nvml.Message{Stuck: now})
		}
		last = now
	}
}
