package gpucheck

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
)

const (
	// startTime is for a program's start: the CUDA driver of a large node takes
	// seconds to be initialised where nobody keeps it loaded.
	startTime = 30 * time.Second
	// quickTime is for what takes milliseconds on a good day.
	quickTime = 10 * time.Second
	// copyTime is for copying the memory of checks 2 and 3 once.
	copyTime = 30 * time.Second
)

// service is a `remuda gms` with one socket.
type service struct {
	*process
	socket string
	began  time.Time
}

// service starts one over the sockets of a directory. keeper is the socket of its
// keeper, "" for none.
func (r *run) service(name, keeper string) (*service, error) {
	args := []string{"gms", "-socket-dir", r.dir, "-backend", r.cfg.Backend, "-gpu", r.gpu}
	if r.cfg.Backend == backendCUDA && r.cfg.CUDALibrary != "" {
		args = append(args, "-cuda-library", r.cfg.CUDALibrary)
	}
	if keeper != "" {
		args = append(args, "-keeper", keeper)
	}
	s := &service{socket: gms.SocketPath(r.dir, r.gpu, "weights"), began: time.Now()}
	var err error
	s.process, err = r.start(name, false, r.remuda, args...)
	return s, err
}

// keeper starts a `remuda gms keeper` and returns its socket.
func (r *run) keeper(name string) (*process, string, error) {
	socket := filepath.Join(r.dir, "keeper.sock")
	p, err := r.start(name, false, r.remuda, "gms", "keeper", "-socket", socket)
	return p, socket, err
}

// state asks once.
func (s *service) state(ctx context.Context) (*wire.GetRuntimeStateResponse, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	return client.RuntimeState(ctx, s.socket)
}

// await waits for the service to answer with what content likes, and returns that.
func (s *service) await(ctx context.Context, content func(*wire.GetRuntimeStateResponse) error) (*wire.GetRuntimeStateResponse, error) {
	var last *wire.GetRuntimeStateResponse
	err := await(ctx, func(ctx context.Context) error {
		state, err := s.state(ctx)
		if err != nil {
			return err
		}
		last = state
		return content(state)
	})
	return last, err
}

// answers is content with any answer.
func answers(*wire.GetRuntimeStateResponse) error { return nil }

// has is content with a committed layout of that hash.
func has(hash string) func(*wire.GetRuntimeStateResponse) error {
	return func(st *wire.GetRuntimeStateResponse) error {
		if !st.Committed || st.MemoryLayoutHash != hash {
			return fmt.Errorf("committed is %t, and the layout's hash %q: want %q", st.Committed, st.MemoryLayoutHash, hash)
		}
		return nil
	}
}
