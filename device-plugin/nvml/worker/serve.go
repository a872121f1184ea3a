// Package worker is the process that talks to NVML, and the only part that
// links it (by cgo).
//
// NVML is a library that can end the process that uses it (a function that is
// missing), hang in it (a driver that hangs), crash it, and never be loaded
// twice (a driver that was exchanged needs another library). So it gets a
// process of its own: a worker, which lives for one initialisation of NVML and
// may be killed at any time. One worker serves the node: it lists the GPUs and
// waits for their XIDs. Each GPU has another one, which touches no other GPU.
package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/nvml"
)

// Main runs a worker on the library at path (empty: the linker's) until its standard input ends, and
// returns the exit status. The worker is that of the GPU with a PCI bus ID, or of the node if gpu is
// empty.
func Main(path, gpu string) int {
	var fd unix.Stat_t
	record, err := nvml.OpenRecord(nvml.RecordFD)
	if err != nil || unix.Fstat(nvml.WorkerFD, &fd) != nil || fd.Mode&unix.S_IFMT != unix.S_IFIFO {
		fmt.Fprintln(os.Stderr, "the NVML worker is started by the plugin itself")
		return 2
	}
	// NVML starts programs (nvidia-modprobe), which have no business with it.
	unix.CloseOnExec(nvml.WorkerFD)
	unix.CloseOnExec(nvml.RecordFD)
	out := os.NewFile(nvml.WorkerFD, "replies")
	w := &worker{out: json.NewEncoder(out)}
	return w.run(path, gpu, record, os.Stdin)
}

type worker struct {
	// mu guards out.
	mu  sync.Mutex
	out *json.Encoder
}

// send writes a message. A plugin that is gone is seen on the standard input.
func (w *worker) send(m nvml.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(m)
}

func (w *worker) run(path, gpu string, record *nvml.Record, in io.Reader) int {
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
	lib, have, err := open(path, record)
	if err != nil {
		w.send(failure(0, err))
		return 1
	}
	r := NewReader(lib, have, record)
	w.send(nvml.Message{})
	events := &events{send: w.send, pause: eventPause, uuids: map[nv.Device]string{}}
	for req := range requests {
		reply := nvml.Message{ID: req.ID}
		switch {
		case req.Op == nvml.OpName && gpu == "":
			// Each in a goroutine: one GPU that hangs must not keep the others from being watched.
			go func() { w.send(name(events, r.at(1+req.Index), req)) }()
			continue
		case req.Op == nvml.OpNode && gpu == "":
			reply.Node, err = r.Node()
		case req.Op == nvml.OpRead && gpu != "":
			reply.Reading, err = r.Read(gpu)
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

// name names a GPU and registers its events.
func name(events *events, r *Reader, req nvml.Request) nvml.Message {
	dev, n, err := r.Name(req.Index)
	if err != nil {
		// Only the requests about the node end it.
		return nvml.Message{ID: req.ID, Err: err.Error()}
	}
	events.register(r, dev, n)
	return nvml.Message{ID: req.ID, Name: n}
}

func failure(id uint64, err error) nvml.Message {
	return nvml.Message{ID: id, Err: err.Error(), Fatal: id == 0 || errors.Is(err, errReinit), NoDriver: errors.Is(err, errNoDriver)}
}
