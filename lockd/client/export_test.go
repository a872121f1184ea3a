package client

import (
	"context"
	"net"
)

// SetDial has a client connect in another way.
func SetDial(c *Client, dial func(context.Context) (net.Conn, error)) { c.dial = dial }
