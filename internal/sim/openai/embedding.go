package openai

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
)

// Embeddings is the answer of /v1/embeddings.
func Embeddings(id, model string, created int64, vectors [][]float32, asBase64 bool, u Usage) []byte {
	b := appendString([]byte(`{"id":`), id)
	b = append(b, `,"object":"list","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = appendString(append(b, `,"model":`...), model)
	b = append(b, `,"data":[`...)
	for i, v := range vectors {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
		b = append(b, `,"object":"embedding","embedding":`...)
		if asBase64 {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			b = append(b, '"')
			b = base64.StdEncoding.AppendEncode(b, raw)
			b = append(b, '"')
		} else {
			sep := byte('[')
			for _, x := range v {
				b = strconv.AppendFloat(append(b, sep), float64(x), 'g', -1, 32)
				sep = ','
			}
			b = append(b, ']')
		}
		b = append(b, '}')
	}
	b = append(b, `],"usage":`...)
	return append(u.append(b), '}')
}
