package gpucheck

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/weights"
)

// ClientVerb is the first argument with which this program is a client.
const ClientVerb = "client"

// copyBytes is how much is copied at once between host and GPU.
const copyBytes = 8 << 20

// clientConfig is what a client is told on its command line, as JSON.
type clientConfig struct {
	Backend string
	Library string
	GPU     string
	// Socket is the memory service's; empty for a client that only loads.
	Socket string
}

// order is one line to a client.
type order struct {
	Do string
	// Lock is how to connect.
	Lock wire.LockType `json:",omitempty"`
	// Sizes and Seed say what to allocate and write.
	Sizes []uint64 `json:",omitempty"`
	Seed  uint64   `json:",omitempty"`
	// Path is the file to load.
	Path string `json:",omitempty"`
}

// What a client can be told to do.
const (
	doConnect = "connect"
	doWrite   = "write"
	doCommit  = "commit"
	doMap     = "map"
	doDigest  = "digest"
	doLoad    = "load"
)

// answer is one line from a client.
type answer struct {
	Err   string `json:",omitempty"`
	Hash  string `json:",omitempty"`
	Nonce string `json:",omitempty"`
	// Digest is of all bytes in the order of the layout.
	Digest uint64 `json:",omitempty"`
	Bytes  uint64 `json:",omitempty"`
	// Took is how long the work itself took.
	Took time.Duration `json:",omitempty"`
}

// Client runs a client until its input ends: it does what each line says, and
// answers with a line. The caller kills it where it must not end in peace.
func Client(ctx context.Context, config string, in io.Reader, out io.Writer) error {
	var cfg clientConfig
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return fmt.Errorf("client: its configuration: %w", err)
	}
	w := &worker{cfg: cfg}
	defer w.close()
	if err := w.open(); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	lines := bufio.NewScanner(in)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("client: an order: %w", err)
		}
		began := time.Now()
		a, err := w.do(ctx, o)
		if a.Took == 0 {
			a.Took = time.Since(began)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	return lines.Err()
}

// worker is a client's work.
type worker struct {
	cfg      clientConfig
	space    client.Space
	client   *client.Client
	mappings []*client.Mapping
	closes   []func() error
}

// open makes the address space, on a GPU with a context.
func (w *worker) open() error {
	if w.cfg.Backend == backendHost {
		w.space = host.NewSpace()
	} else {
		s, err := cuda.NewSpace(cuda.Config{Library: w.cfg.Library, GPU: w.cfg.GPU})
		if err != nil {
			return err
		}
		w.space, w.closes = s, append(w.closes, s.Close)
	}
	if w.cfg.Socket == "" {
		return nil
	}
	var err error
	if w.client, err = client.New(client.Config{Socket: w.cfg.Socket, Space: w.space}); err == nil {
		w.closes = append(w.closes, w.client.Close)
	}
	return err
}

func (w *worker) close() {
	for _, f := range slices.Backward(w.closes) {
		_ = f() // the process ends
	}
}

func (w *worker) do(ctx context.Context, o order) (answer, error) {
	switch o.Do {
	case doConnect:
		if _, err := w.client.Connect(ctx, o.Lock, nil); err != nil {
			return answer{}, err
		}
		return answer{Hash: w.client.Hash(), Nonce: w.client.Session().Nonce()}, nil
	case doWrite:
		return w.write(ctx, o)
	case doCommit:
		hash, err := w.client.Commit(ctx)
		return answer{Hash: hash}, err
	case doMap:
		return w.mapAll(ctx)
	case doDigest:
		return w.digest(ctx)
	case doLoad:
		return w.load(o.Path)
	}
	return answer{}, fmt.Errorf("nobody knows how to %q", o.Do)
}

// write allocates, maps and fills. The digest is of what was written, not of what
// is there. Took is of the copies alone.
func (w *worker) write(ctx context.Context, o order) (a answer, err error) {
	sum, buf, random := xxhash.New(), make([]byte, copyBytes), o.Seed
	for _, size := range o.Sizes {
		got, err := w.client.Session().Allocate(ctx, size, "weights")
		if err != nil {
			return a, err
		}
		m, err := w.client.Map(ctx, got.ID)
		if err != nil {
			return a, err
		}
		for at := uint64(0); at < size; at += copyBytes {
			part := buf[:min(copyBytes, size-at)]
			random = fill(part, random)
			_, _ = sum.Write(part) // never fails
			began := time.Now()
			if err := m.Write(ctx, at, part); err != nil {
				return a, err
			}
			a.Took += time.Since(began)
		}
		a.Bytes += size
	}
	a.Digest = sum.Sum64()
	return a, nil
}

// fill writes numbers of splitmix64, so that no two places look alike.
func fill(b []byte, state uint64) uint64 {
	for i := 0; i < len(b); i += 8 {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		for j := i; j < min(i+8, len(b)); j++ {
			b[j] = byte(z)
			z >>= 8
		}
	}
	return state
}

// mapAll maps the committed layout.
func (w *worker) mapAll(ctx context.Context) (a answer, err error) {
	list, err := w.client.Session().List(ctx, "")
	if err != nil {
		return a, err
	}
	slices.SortFunc(list, func(x, y client.Allocation) int { return cmp.Compare(x.Slot, y.Slot) })
	for _, one := range list {
		m, err := w.client.Map(ctx, one.ID)
		if err != nil {
			return a, err
		}
		w.mappings = append(w.mappings, m)
		a.Bytes += m.Size()
	}
	return a, nil
}

// digest reads everything back.
func (w *worker) digest(ctx context.Context) (a answer, err error) {
	sum, buf := xxhash.New(), make([]byte, copyBytes)
	for _, m := range w.mappings {
		for at := uint64(0); at < m.Size(); at += copyBytes {
			part := buf[:min(copyBytes, m.Size()-at)]
			if err := m.Read(ctx, at, part); err != nil {
				return a, err
			}
			_, _ = sum.Write(part) // never fails
		}
		a.Bytes += m.Size()
	}
	a.Digest = sum.Sum64()
	return a, nil
}

// load reads a weights file into memory that nobody else has.
func (w *worker) load(path string) (a answer, err error) {
	began := time.Now()
	file, err := weights.Open(path)
	if err != nil {
		return a, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	size := uint64(file.Header.DataSize)
	if w.cfg.Backend == backendHost {
		private, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return a, fmt.Errorf("take %d bytes: %w", size, err)
		}
		err = file.Load(private)
		return answer{Bytes: size, Took: time.Since(began)}, err
	}
	addr, err := w.private(size)
	if err != nil {
		return a, err
	}
	if err := w.copyFile(file, path, addr); err != nil {
		return a, err
	}
	return answer{Bytes: size, Took: time.Since(began)}, nil
}

// private makes memory of the GPU whose only descriptor is closed again.
func (w *worker) private(size uint64) (addr uintptr, err error) {
	gpu, err := cuda.New(cuda.Config{Library: w.cfg.Library, GPU: w.cfg.GPU})
	if err != nil {
		return 0, err
	}
	w.closes = append(w.closes, gpu.Close)
	size = (size + gpu.Granularity() - 1) / gpu.Granularity() * gpu.Granularity()
	memory, err := gpu.Allocate(size)
	if err != nil {
		return 0, err
	}
	fd, err := memory.Export()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // it was only used to map
	if addr, err = w.space.Reserve(size); err != nil {
		return 0, err
	}
	if err := w.space.Map(addr, size, fd, true); err != nil {
		return 0, err
	}
	return addr, memory.Release()
}

// readers are enough to keep ahead of the bus.
const readers = 8

// copyFile copies the tensors of a file, read by several at once.
func (w *worker) copyFile(file *weights.File, path string, addr uintptr) error {
	raw, err := os.Open(path)
	if err != nil {
		return err
	}
	defer raw.Close()
	chunks := make(chan int64)
	errs := make([]error, min(readers, runtime.GOMAXPROCS(0)))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			buf := make([]byte, copyBytes)
			for at := range chunks {
				if errs[i] != nil {
					continue
				}
				part := buf[:min(copyBytes, file.Header.DataSize-at)]
				if _, errs[i] = raw.ReadAt(part, file.Header.DataOffset+at); errs[i] == nil {
					errs[i] = w.space.Write(addr+uintptr(at), part)
				}
			}
		})
	}
	for at := int64(0); at < file.Header.DataSize; at += copyBytes {
		chunks <- at
	}
	close(chunks)
	wg.Wait()
	return errors.Join(errs...)
}
