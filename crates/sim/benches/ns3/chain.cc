// The bench's chain of links in ns-3: bulk flows from one end to the other, and what they cost.
//
// Usage: chain LINKS NARROW_RATE NARROW_DELAY RATE DELAY QUEUE TYPE SECONDS FLOWS
// The first link is the narrow one, at the receiver; its queue holds QUEUE packets, the others more
// than ever wait there. Prints the packets handed to devices, the processor time of the run alone in
// seconds, and the goodput in Mbit/s.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdint>
#include <ctime>
#include <iostream>
#include <string>

namespace
{

std::uint64_t handed = 0;

void
CountPacket(ns3::Ptr<const ns3::Packet>)
{
    ++handed;
}

double
ProcessorTime()
{
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

} // namespace

int
main(int count, char** words)
{
    using namespace ns3;
    if (count != 10)
    {
        std::cerr << "usage: chain LINKS NARROW_RATE NARROW_DELAY RATE DELAY QUEUE TYPE SECONDS FLOWS\n";
        return 64;
    }
    const auto links = static_cast<std::uint32_t>(std::stoul(words[1]));
    const double seconds = std::stod(words[8]);
    const auto flows = static_cast<std::uint32_t>(std::stoul(words[9]));

    // As our endpoints: full segments, windows that never limit, a first window of ten.
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue(std::string("ns3::") + words[7]));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(64 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(64 << 20));

    NodeContainer nodes(links + 1);
    InternetStackHelper().Install(nodes);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4Address receiver;
    for (std::uint32_t link = 0; link < links; ++link)
    {
        const bool narrow = link == 0;
        PointToPointHelper helper;
        helper.SetDeviceAttribute("DataRate", StringValue(words[narrow ? 2 : 4]));
        helper.SetChannelAttribute("Delay", StringValue(words[narrow ? 3 : 5]));
        const std::string queue = narrow ? std::string(words[6]) + "p" : "1000000p";
        helper.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(queue));
        const NetDeviceContainer devices = helper.Install(nodes.Get(link), nodes.Get(link + 1));
        const Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
        // The devices' queues are all there is, as in our links.
        TrafficControlHelper().Uninstall(devices);
        addresses.NewNetwork();
        if (narrow)
        {
            receiver = interfaces.GetAddress(0);
        }
        for (std::uint32_t end = 0; end < devices.GetN(); ++end)
        {
            devices.Get(end)->TraceConnectWithoutContext("MacTx", MakeCallback(&CountPacket));
        }
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    const InetSocketAddress there(receiver, 5001);
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5001));
    const ApplicationContainer sinks = sink.Install(nodes.Get(0));
    BulkSendHelper bulk("ns3::TcpSocketFactory", there);
    bulk.SetAttribute("MaxBytes", UintegerValue(0));
    bulk.SetAttribute("SendSize", UintegerValue(1448 * 16));
    for (std::uint32_t flow = 0; flow < flows; ++flow)
    {
        bulk.Install(nodes.Get(links));
    }

    Simulator::Stop(Seconds(seconds));
    const double before = ProcessorTime();
    Simulator::Run();
    const double took = ProcessorTime() - before;
    const double bytes = static_cast<double>(DynamicCast<PacketSink>(sinks.Get(0))->GetTotalRx());
    Simulator::Destroy();
    std::cout << handed << ' ' << took << ' ' << bytes * 8 / seconds / 1e6 << '\n';
    return 0;
}
