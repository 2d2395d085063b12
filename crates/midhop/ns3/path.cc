// One plan of midhop in ns-3: hosts, links, transfers, and proxies that split connections by sockets of their own.
//
// Reads a plan from standard input, one thing to a line, and prints a line for each flow when the run is over:
//
//   seed NUMBER                     of all draws
//   duration NS                     when the run ends
//   nodes COUNT
//   link A B RATE RATE DELAY-NS QUEUE QUEUE LOSS LOSS
//                                   from A to B, then from B to A; a queue is `100p` or `150000B`
//   leg NODE NEIGHBOUR CONTROL RTT0-NS BUFFER
//                                   how connections at NODE towards NEIGHBOUR send, and what each holds of a direction
//   flow OPENER LISTENER START-NS BYTES SPAN-NS SENDS VIA...
//                                   no more than BYTES, for SPAN-NS where that is not 0; SENDS is `opener` or
//                                   `listener`; VIA are the nodes with proxies, from the opener on
//
// Of a flow: when its SYN left and its last byte came (ns), the bytes that were handed to TCP and those that came, and how
// many segments its sender sent again.
//
// A host has ns-3's TCP with what the plans of midhop take for granted: segments of 1448 bytes, timestamps, SACK, a first
// window of ten, acknowledgements that wait for 40 ms, a timeout of 200 ms at least, PRR. What differs from ours and
// cannot be set is in docs/truth.md ("A second simulator").

#include "ns3/core-module.h"
#include "ns3/error-model.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/tcp-bbr.h"
#include "ns3/tcp-cubic.h"
#include "ns3/tcp-hybla.h"
#include "ns3/tcp-linux-reno.h"
#include "ns3/tcp-vegas.h"
#include "ns3/tcp-westwood-plus.h"
#include "ns3/traffic-control-module.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace
{

using namespace ns3;

constexpr std::uint32_t kSegment = 1448;
constexpr std::uint16_t kFirstPort = 5000;
constexpr std::uint32_t kWindowMax = 1 << 30;

struct Leg
{
    std::string control = "cubic";
    std::int64_t rtt0_ns = 0;
    std::uint32_t buffer = 4 << 20;
};

struct Network
{
    NodeContainer nodes;
    // The address by which a node is known to a neighbour.
    std::map<std::pair<std::uint32_t, std::uint32_t>, Ipv4Address> addresses;
    std::map<std::uint32_t, Ipv4Address> homes;
    std::map<std::pair<std::uint32_t, std::uint32_t>, Leg> legs;
    // The neighbour on the way from a node to another.
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> next;
    std::vector<std::vector<std::uint32_t>> neighbours;
};

// ns-3's Hybla over the shortest round trip. ns-3 passes it the smoothed one, and it computes rho anew only where that is
// exactly the shortest: where the handshake was faster than data is, its rho stays 1, and it is Reno.
class MinRttHybla : public TcpHybla
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("midhop::MinRttHybla").SetParent<TcpHybla>().AddConstructor<MinRttHybla>();
        return id;
    }

    void PktsAcked(Ptr<TcpSocketState> state, std::uint32_t segments, const Time&) override
    {
        TcpHybla::PktsAcked(state, segments, state->m_minRtt);
    }

    Ptr<TcpCongestionOps> Fork() override
    {
        return CopyObject<MinRttHybla>(this);
    }
};

Ptr<TcpCongestionOps>
Control(const Leg& leg)
{
    if (leg.control == "reno")
    {
        return CreateObject<TcpLinuxReno>();
    }
    if (leg.control == "cubic")
    {
        return CreateObject<TcpCubic>();
    }
    if (leg.control == "bbr")
    {
        return CreateObject<TcpBbr>();
    }
    if (leg.control == "vegas")
    {
        return CreateObject<TcpVegas>();
    }
    if (leg.control == "westwood")
    {
        return CreateObject<TcpWestwoodPlus>();
    }
    if (leg.control == "hybla")
    {
        return CreateObjectWithAttributes<MinRttHybla>("RRTT", TimeValue(NanoSeconds(leg.rtt0_ns)));
    }
    if (leg.control == "hybla-as-it-is")
    {
        return CreateObjectWithAttributes<TcpHybla>("RRTT", TimeValue(NanoSeconds(leg.rtt0_ns)));
    }
    throw std::runtime_error("no congestion control `" + leg.control + "`");
}

// A socket at `node` that sends towards `to` with the congestion control of the leg there.
Ptr<TcpSocketBase>
MakeSocket(const Network& network, std::uint32_t node, std::uint32_t to, bool is_proxys)
{
    const std::uint32_t neighbour = network.next.at({node, to});
    const auto written = network.legs.find({node, neighbour});
    const Leg leg = written == network.legs.end() ? Leg{} : written->second;
    auto socket = DynamicCast<TcpSocketBase>(
        Socket::CreateSocket(network.nodes.Get(node), TcpSocketFactory::GetTypeId()));
    socket->SetCongestionControlAlgorithm(Control(leg));
    socket->SetPacingStatus(leg.control == "bbr");
    socket->SetAttribute("SndBufSize", UintegerValue(leg.buffer));
    // ns-3 sends no window update when an application reads: the sender finds out by a probe after 6 s.
    // So windows of proxies never close.
    socket->SetAttribute("RcvBufSize", UintegerValue(is_proxys ? kWindowMax : leg.buffer));
    return socket;
}

// Bytes from one socket to another; what finds no room stays unread.
class Direction : public SimpleRefCount<Direction>
{
  public:
    Direction(Ptr<Socket> from, Ptr<Socket> to)
        : m_from(from),
          m_to(to)
    {
    }

    void Go()
    {
        for (;;)
        {
            if (m_waiting)
            {
                const std::uint32_t room = m_to->GetTxAvailable();
                if (room < m_waiting->GetSize())
                {
                    return;
                }
                m_to->Send(m_waiting);
                m_waiting = nullptr;
            }
            const std::uint32_t room = std::min(m_to->GetTxAvailable(), 64 * kSegment);
            if (room == 0)
            {
                return;
            }
            m_waiting = m_from->Recv(room, 0);
            if (!m_waiting || m_waiting->GetSize() == 0)
            {
                m_waiting = nullptr;
                return;
            }
        }
    }

  private:
    Ptr<Socket> m_from;
    Ptr<Socket> m_to;
    Ptr<Packet> m_waiting;
};

// A flow: its connections from the opener to the listener.
class Flow : public SimpleRefCount<Flow>
{
  public:
    Flow(const Network& network,
         std::vector<std::uint32_t> stops,
         std::int64_t start_ns,
         std::uint64_t bytes,
         std::int64_t span_ns,
         bool opener_sends,
         std::uint16_t port)
        : m_network(network),
          m_stops(std::move(stops)),
          m_start_ns(start_ns),
          m_left(bytes),
          m_span_ns(span_ns),
          m_opener_sends(opener_sends),
          m_port(port)
    {
        // Each stop behind the opener listens for the one before it.
        for (std::size_t at = 1; at < m_stops.size(); ++at)
        {
            auto socket = MakeSocket(m_network, m_stops[at], m_stops[at - 1], at + 1 < m_stops.size());
            socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), m_port));
            socket->Listen();
            socket->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                      MakeBoundCallback(&Flow::Accepted, this, at));
            m_listening.push_back(socket);
        }
        Simulator::Schedule(NanoSeconds(m_start_ns), &Flow::Open, this);
    }

    void Print() const
    {
        std::cout << m_start_ns << ' ' << m_end_ns << ' ' << m_handed << ' ' << m_received << ' ' << m_again << '\n';
    }

  private:
    // What was handed to a layer below and had been sent before: the sender's retransmissions.
    static void Sent(Flow* flow,
                     Ptr<const Packet> packet,
                     const TcpHeader& header,
                     Ptr<const TcpSocketBase>)
    {
        if (packet->GetSize() == 0)
        {
            return;
        }
        const SequenceNumber32 end = header.GetSequenceNumber() + packet->GetSize();
        if (end <= flow->m_sent)
        {
            ++flow->m_again;
        }
        else
        {
            flow->m_sent = end;
        }
    }

    void Open()
    {
        if (m_span_ns > 0)
        {
            Simulator::Schedule(NanoSeconds(m_span_ns), &Flow::Stop, this);
        }
        Dial(0);
    }

    void Stop()
    {
        m_left = 0;
        if (m_source)
        {
            m_source->Close();
        }
    }

    void Dial(std::size_t at)
    {
        auto socket = MakeSocket(m_network, m_stops[at], m_stops[at + 1], at > 0);
        const auto there = InetSocketAddress(m_network.homes.at(m_stops[at + 1]), m_port);
        m_dialled[at] = socket;
        socket->SetConnectCallback(MakeBoundCallback(&Flow::Connected, this, at),
                                   MakeNullCallback<void, Ptr<Socket>>());
        socket->Bind();
        socket->Connect(there);
    }

    static void Connected(Flow* flow, std::size_t at, Ptr<Socket> socket)
    {
        if (at == 0)
        {
            flow->Ready(socket, flow->m_opener_sends);
        }
        else
        {
            flow->Join(at);
        }
    }

    static void Accepted(Flow* flow, std::size_t at, Ptr<Socket> socket, const Address&)
    {
        flow->m_accepted[at] = socket;
        if (at + 1 == flow->m_stops.size())
        {
            flow->Ready(socket, !flow->m_opener_sends);
        }
        else
        {
            flow->Dial(at);
        }
    }

    // Both connections of a proxy are there.
    void Join(std::size_t at)
    {
        const auto near = m_accepted.at(at);
        const auto far = m_dialled.at(at);
        for (const auto& [from, to] : {std::pair{near, far}, std::pair{far, near}})
        {
            auto direction = Create<Direction>(from, to);
            m_directions.push_back(direction);
            from->SetRecvCallback(MakeBoundCallback(&Flow::Moved, direction));
            to->SetSendCallback(MakeBoundCallback(&Flow::Room, direction));
            direction->Go();
        }
    }

    static void Moved(Ptr<Direction> direction, Ptr<Socket>)
    {
        direction->Go();
    }

    static void Room(Ptr<Direction> direction, Ptr<Socket>, std::uint32_t)
    {
        direction->Go();
    }

    // An end of the flow.
    void Ready(Ptr<Socket> socket, bool sends)
    {
        if (sends)
        {
            m_source = socket;
            socket->TraceConnectWithoutContext("Tx", MakeBoundCallback(&Flow::Sent, this));
            socket->SetSendCallback(MakeBoundCallback(&Flow::Writable, this));
            Write();
        }
        else
        {
            socket->SetRecvCallback(MakeBoundCallback(&Flow::Readable, this));
            Readable(this, socket);
        }
    }

    static void Writable(Flow* flow, Ptr<Socket>, std::uint32_t)
    {
        flow->Write();
    }

    void Write()
    {
        while (m_left > 0)
        {
            const std::uint64_t room = m_source->GetTxAvailable();
            const std::uint64_t now = std::min({m_left, room, std::uint64_t{64} * kSegment});
            if (now == 0 || m_source->Send(Create<Packet>(now)) < 0)
            {
                return;
            }
            m_left -= now;
            m_handed += now;
        }
        m_source->Close();
    }

    static void Readable(Flow* flow, Ptr<Socket> socket)
    {
        while (auto packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                return;
            }
            flow->m_received += packet->GetSize();
            flow->m_end_ns = Simulator::Now().GetNanoSeconds();
        }
    }

    const Network& m_network;
    std::vector<std::uint32_t> m_stops;
    std::int64_t m_start_ns;
    std::uint64_t m_left;
    std::int64_t m_span_ns;
    bool m_opener_sends;
    std::uint16_t m_port;
    std::int64_t m_end_ns = 0;
    std::uint64_t m_handed = 0;
    std::uint64_t m_received = 0;
    std::uint64_t m_again = 0;
    SequenceNumber32 m_sent{0};
    Ptr<Socket> m_source;
    std::vector<Ptr<Socket>> m_listening;
    std::map<std::size_t, Ptr<Socket>> m_dialled;
    std::map<std::size_t, Ptr<Socket>> m_accepted;
    std::vector<Ptr<Direction>> m_directions;
};

// The neighbour on the shortest way from each node to each other one.
void
FindWays(Network& network)
{
    const auto count = static_cast<std::uint32_t>(network.neighbours.size());
    for (std::uint32_t to = 0; to < count; ++to)
    {
        std::vector<std::uint32_t> reached{to};
        std::vector<bool> seen(count);
        seen[to] = true;
        for (std::size_t at = 0; at < reached.size(); ++at)
        {
            for (const std::uint32_t from : network.neighbours[reached[at]])
            {
                if (!seen[from])
                {
                    seen[from] = true;
                    network.next[{from, to}] = reached[at];
                    reached.push_back(from);
                }
            }
        }
    }
}

void
Connect(Network& network, std::istringstream& words, Ipv4AddressHelper& addresses)
{
    std::uint32_t a = 0;
    std::uint32_t b = 0;
    std::uint64_t rates[2] = {};
    std::int64_t delay_ns = 0;
    std::string queues[2];
    double losses[2] = {};
    if (!(words >> a >> b >> rates[0] >> rates[1] >> delay_ns >> queues[0] >> queues[1] >> losses[0] >> losses[1]))
    {
        throw std::runtime_error("a link has two nodes, two rates, a delay, two queues and two losses");
    }
    PointToPointHelper helper;
    helper.SetChannelAttribute("Delay", TimeValue(NanoSeconds(delay_ns)));
    const NetDeviceContainer devices = helper.Install(network.nodes.Get(a), network.nodes.Get(b));
    for (std::uint32_t end = 0; end < 2; ++end)
    {
        auto device = DynamicCast<PointToPointNetDevice>(devices.Get(end));
        device->SetDataRate(DataRate(rates[end]));
        auto queue = CreateObject<DropTailQueue<Packet>>();
        queue->SetMaxSize(QueueSize(queues[end]));
        device->SetQueue(queue);
        if (losses[end] > 0)
        {
            // A device loses what it receives.
            auto losing = CreateObject<RateErrorModel>();
            losing->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
            losing->SetRate(losses[end]);
            devices.Get(1 - end)->SetAttribute("ReceiveErrorModel", PointerValue(losing));
        }
    }
    const Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
    // The devices' queues are all there is, as in our links.
    TrafficControlHelper().Uninstall(devices);
    addresses.NewNetwork();
    network.homes.try_emplace(a, interfaces.GetAddress(0));
    network.homes.try_emplace(b, interfaces.GetAddress(1));
    network.neighbours[a].push_back(b);
    network.neighbours[b].push_back(a);
}

void
SetDefaults()
{
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegment));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", TypeIdValue(TcpPrrRecovery::GetTypeId()));
}

int
Run()
{
    SetDefaults();
    Network network;
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    std::vector<Ptr<Flow>> flows;
    std::int64_t duration_ns = 0;
    bool routed = false;
    for (std::string line; std::getline(std::cin, line);)
    {
        std::istringstream words(line);
        std::string what;
        words >> what;
        if (what == "seed")
        {
            std::uint64_t seed = 0;
            words >> seed;
            RngSeedManager::SetSeed(20261125);
            RngSeedManager::SetRun(seed);
        }
        else if (what == "duration")
        {
            words >> duration_ns;
        }
        else if (what == "nodes")
        {
            std::uint32_t count = 0;
            words >> count;
            network.nodes.Create(count);
            network.neighbours.resize(count);
            InternetStackHelper().Install(network.nodes);
        }
        else if (what == "link")
        {
            Connect(network, words, addresses);
        }
        else if (what == "leg")
        {
            std::uint32_t node = 0;
            std::uint32_t neighbour = 0;
            Leg leg;
            words >> node >> neighbour >> leg.control >> leg.rtt0_ns >> leg.buffer;
            network.legs[{node, neighbour}] = leg;
        }
        else if (what == "flow")
        {
            if (!routed)
            {
                Ipv4GlobalRoutingHelper::PopulateRoutingTables();
                FindWays(network);
                routed = true;
            }
            std::uint32_t opener = 0;
            std::uint32_t listener = 0;
            std::int64_t start_ns = 0;
            std::uint64_t bytes = 0;
            std::string sends;
            std::int64_t span_ns = 0;
            words >> opener >> listener >> start_ns >> bytes >> span_ns >> sends;
            std::vector<std::uint32_t> stops{opener};
            for (std::uint32_t via = 0; words >> via;)
            {
                stops.push_back(via);
            }
            stops.push_back(listener);
            const auto port = static_cast<std::uint16_t>(kFirstPort + flows.size());
            flows.push_back(Create<Flow>(network, stops, start_ns, bytes, span_ns, sends == "opener", port));
        }
        else if (!what.empty())
        {
            throw std::runtime_error("a line begins with `" + what + "`");
        }
    }
    Simulator::Stop(NanoSeconds(duration_ns));
    Simulator::Run();
    for (const auto& flow : flows)
    {
        flow->Print();
    }
    flows.clear();
    Simulator::Destroy();
    return 0;
}

} // namespace

int
main()
{
    try
    {
        return Run();
    }
    catch (const std::exception& error)
    {
        std::cerr << "error: " << error.what() << '\n';
        return 64;
    }
}
