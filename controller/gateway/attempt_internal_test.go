package gateway

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClosed: only an end that the engine's side sent is one of the engine.
func TestClosed(t *testing.T) {
	t.Parallel()
	network := func(call string, errno syscall.Errno) error {
		return fmt.Errorf("send: %w", &net.OpError{Op: call, Net: "tcp", Err: os.NewSyscallError(call, errno)})
	}
	for err, want := range map[error]bool{
		io.EOF: true, io.ErrUnexpectedEOF: true, network("read", syscall.ECONNRESET): true, network("write", syscall.EPIPE): true,
		network("read", syscall.ETIMEDOUT): false, network("read", syscall.EHOSTUNREACH): false, network("write", syscall.ENETUNREACH): false,
	} {
		require.True(t, isReset(err), err)
		require.Equal(t, want, closed(err), err)
	}
}
