package client

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"

	"remuda/device-plugin/gms/wire"
)

// A unit's address is the path of its socket, or NODE#GPU#GROUP#TAG: NODE is the path of
// the node's socket, GPU the GPU's UUID, and GROUP names those who use the unit together.
// The unit of the second kind is made when it is first used.

// Address returns the address of a unit without a socket of its own. The members of a
// group do not count as others for Options.IfUnused; without a group every connection does.
func Address(node, gpu, tag, group string) string {
	return strings.Join([]string{node, gpu, url.QueryEscape(group), tag}, "#")
}

// parseAddress returns the socket, and what to ask for there; nil for a unit's own.
func parseAddress(address string) (socket string, open *wire.OpenUnitRequest) {
	parts := strings.SplitN(address, "#", 4)
	if len(parts) < 4 {
		return address, nil
	}
	group, err := url.QueryUnescape(parts[2])
	if err != nil {
		group = parts[2]
	}
	return parts[0], &wire.OpenUnitRequest{GPU: parts[1], Tag: parts[3], Group: group}
}

// GPU returns the UUID of the GPU of a unit's address.
func GPU(address string) (string, error) {
	socket, open := parseAddress(address)
	if open != nil {
		return open.GPU, nil
	}
	// gms_<UUID>_<tag>.sock
	parts := strings.Split(filepath.Base(socket), "_")
	if len(parts) < 3 {
		return "", fmt.Errorf("socket %s: must be named gms_<GPU UUID>_<tag>.sock", socket)
	}
	return parts[1], nil
}

// Hold keeps a unit in use until ctx ends: no client that asks with Options.IfUnused
// takes its layout away, though no session is open. It opens a connection, and another
// one whenever the service has ended it. The unit of a socket of its own cannot be held.
func Hold(ctx context.Context, address string, log hclog.Logger) {
	if _, open := parseAddress(address); open == nil {
		return
	}
	for failure := ""; ctx.Err() == nil; {
		s, err := connect(ctx, address)
		if err == nil {
			failure = ""
			select {
			case <-s.Done():
			case <-ctx.Done():
			}
			_ = s.Close()
			pause(ctx, retryMin)
			continue
		}
		if ctx.Err() == nil && failure != err.Error() {
			failure = err.Error()
			log.Debug("cannot keep GPU memory in use", "address", address, "error", err)
		}
		pause(ctx, retryMax)
	}
}
