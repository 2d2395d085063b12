module midhop.example/peers/go-http2

go 1.26.0
