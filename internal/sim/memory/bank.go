package memory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"remuda/internal/sim/weights"
)

// Sleep levels, as vLLM numbers them.
const (
	// LevelOffload copies the weights to host memory.
	LevelOffload = 1
	// LevelDiscard forgets them; waking reads the file again. (vLLM leaves
	// that to a separate reload_weights call; here a wake is complete.)
	LevelDiscard = 2
)

// Bank holds one model's weights. Its methods are safe for concurrent use; a
// Bank without a file is empty and every operation on it succeeds.
type Bank struct {
	path string
	rank Rank

	mu      sync.Mutex // held during copies, so that operations never overlap
	at      Place      // of the device memory
	header  *weights.Header
	digests weights.Digests
	device  region
	host    region
	leaks   Leaks

	usage sync.Mutex // guards the two below, so that Usage never waits for a copy
	onDev int64
	onHst int64
}

// Rank is one of several processes that have a part of the weights each. The zero Rank has all.
type Rank struct {
	Number int // from 0
	Of     int
}

// ErrAwake is returned by Move while the weights are on the device.
var ErrAwake = errors.New("the weights are on the device")

// Open reads a rank's part of the weights file at path onto the GPUs of a place, on each the
// same share of it, and checks it. An empty path makes an empty bank. A file without digests is
// taken as it is, and its digests are computed for later wakes.
func Open(path string, rank Rank, at Place) (*Bank, error) {
	b := &Bank{path: path, rank: rank, at: at}
	if path == "" {
		return b, nil
	}
	f, err := b.openFile()
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the file was only read
	b.header = f.Header
	if b.digests, err = f.Header.Digests(); err != nil {
		return nil, fmt.Errorf("weights %s: %w", path, err)
	}
	if b.device, err = newDevice(f.Header.DataSize, b.at); err != nil {
		return nil, err
	}
	if err = f.Load(b.device.data); err == nil {
		err = b.verify()
	}
	if err != nil {
		return nil, errors.Join(err, b.device.free())
	}
	if len(b.digests) < len(f.Header.Tensors) {
		if b.digests, err = f.Header.Sum(&b.device); err != nil {
			return nil, errors.Join(err, b.device.free())
		}
	}
	b.account()
	return b, nil
}

// Sleep takes the weights off the device. A second call may deepen the sleep
// from level 1 to level 2; it never undoes one. Leak is how many bytes of
// device memory to keep by mistake (a fault switch); leaks add up.
func (b *Bank) Sleep(level int, leak int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.account()
	if err := b.leaks.Add(leak, b.at); err != nil {
		return err
	}
	switch {
	case level == LevelDiscard:
		return errors.Join(b.device.free(), b.host.free())
	case b.device.data == nil:
		return nil
	}
	host, err := newHost(b.device.size())
	if err != nil {
		return err
	}
	if err := inParallel(host.data, b.device.ReadAt); err != nil {
		return errors.Join(err, host.free())
	}
	b.host = host
	return b.device.free()
}

// Wake brings the weights back onto the device and checks them. It waits for
// nobody, whatever the context. With corrupt it first damages one byte of the copy
// (a fault switch), and fails in any case. After an error the bank is still asleep.
func (b *Bank) Wake(_ context.Context, corrupt bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.account()
	if corrupt && b.header == nil {
		return fmt.Errorf("%w: told to fail, without weights to damage", weights.ErrDigest)
	}
	if b.header == nil || b.device.data != nil {
		return nil
	}
	dev, err := newDevice(b.header.DataSize, b.at)
	if err != nil {
		return err
	}
	b.device = dev
	if b.host.data != nil {
		err = inParallel(b.host.data, b.device.WriteAt)
		_ = unix.Madvise(b.device.data, unix.MADV_POPULATE_READ) // counts them as this process's
	} else {
		err = b.reload()
	}
	if err == nil {
		if corrupt && len(b.device.data) > 0 {
			b.device.data[len(b.device.data)/2] ^= 1
		}
		err = b.verify()
	}
	if err != nil {
		return errors.Join(err, b.device.free())
	}
	return b.host.free()
}

// Move makes the next wake be on these GPUs. What has leaked stays where it is.
func (b *Bank) Move(gpus []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.device.data != nil {
		return ErrAwake
	}
	b.at.GPUs = slices.Clone(gpus)
	return nil
}

// openFile opens the bank's part of the file.
func (b *Bank) openFile() (*weights.File, error) {
	f, err := weights.Open(b.path)
	if err == nil {
		f.Header = f.Header.Part(b.rank.Number, b.rank.Of)
	}
	return f, err
}

func (b *Bank) reload() error {
	f, err := b.openFile()
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // the file was only read
	return f.Load(b.device.data)
}

func (b *Bank) verify() error {
	if err := b.header.Check(&b.device, b.digests); err != nil {
		return fmt.Errorf("weights %s: %w", b.path, err)
	}
	return nil
}

// Size is how many bytes the weights take.
func (b *Bank) Size() int64 {
	if b.header == nil {
		return 0
	}
	return b.header.DataSize
}

// Tensors is how many tensors the weights have.
func (b *Bank) Tensors() int {
	if b.header == nil {
		return 0
	}
	return len(b.header.Tensors)
}

// Usage is how many bytes are on the device (leaks included) and in host
// memory. It does not wait for a Sleep or Wake in progress.
func (b *Bank) Usage() (device, host int64) {
	b.usage.Lock()
	defer b.usage.Unlock()
	return b.onDev, b.onHst
}

// Close frees everything. The bank must not be used afterwards.
func (b *Bank) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.account()
	return errors.Join(b.device.free(), b.host.free(), b.leaks.Free())
}

// account publishes the sizes; the caller holds mu.
func (b *Bank) account() {
	dev := b.device.size() + b.leaks.Size()
	b.usage.Lock()
	defer b.usage.Unlock()
	b.onDev, b.onHst = dev, b.host.size()
}

// inParallel copies all of b to or from device memory, on all CPUs.
func inParallel(b []byte, do func(b []byte, at int64) (int, error)) error {
	n := runtime.GOMAXPROCS(0)
	part := max((len(b)/n+4095)&^4095, 1)
	errs := make([]error, n+1)
	var wg sync.WaitGroup
	for i := 0; i*part < len(b); i++ {
		at, end := i*part, min((i+1)*part, len(b))
		wg.Go(func() { _, errs[i] = do(b[at:end], int64(at)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
