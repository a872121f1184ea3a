package conformance_test

import "github.com/vmihailenco/msgpack/v5"

// rawInt is MessagePack that is written as it stands.
type rawInt []byte

var _ msgpack.CustomEncoder = rawInt(nil)

func (r rawInt) EncodeMsgpack(enc *msgpack.Encoder) error {
	_, err := enc.Writer().Write(r)
	return err
}
